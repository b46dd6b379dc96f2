//! HIP and HIPRTC on top of CUDA and NVRTC, for tests: it exports the functions of HIP that we use and forwards each to its
//! counterpart, so that the HIP path itself runs on a machine of NVIDIA. The device that it shows has warps of 32 lanes and
//! calls itself gfx1030, so kernels are written as for a device of AMD without matrix instructions.
//!
//! Both vendors agree on most signatures and on the numbers of flags and copy directions that we use; what differs is the
//! current device, attributes, names of architectures and the parameters of graph nodes. Tests open it with `HipOnCuda` of the
//! fake driver: no program can be linked with two libraries that export HIP.

#![allow(unsafe_code)]

mod control;
mod cuda;
mod exports;
mod nodes;
