//! Attributes of operators that slide a window over the spatial axes: kernel size, strides, dilations and padding in
//! all the ways ONNX has to say them. Shared by convolution and pooling; sizes may be symbolic.

use precast_tensor::Dim;

use crate::import::{Fault, NodeCx};

/// How a window slides: one entry of each list a spatial axis.
#[derive(Clone, Debug)]
pub(super) struct Sliding {
    pub window: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub pad_lo: Vec<Dim>,
    pub pad_hi: Vec<Dim>,
}

/// What `auto_pad` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AutoPad {
    /// Pads are explicit.
    NotSet,
    /// As many windows as strides; odd padding goes to the end.
    SameUpper,
    /// As many windows as strides; odd padding goes to the start.
    SameLower,
    /// No padding.
    Valid,
}

impl Sliding {
    /// Reads strides, dilations, auto_pad and pads for a window over `spatial` axes.
    pub(super) fn read(cx: &NodeCx<'_, '_>, spatial: &[Dim], window: Vec<usize>) -> Result<Sliding, Fault> {
        let auto_pad = AutoPad::read(cx)?;
        let mut sliding = Sliding::read_explicit(cx, spatial.len(), window)?;
        match auto_pad {
            AutoPad::NotSet => {}
            AutoPad::Valid => {
                sliding.pad_lo = vec![Dim::ZERO; spatial.len()];
                sliding.pad_hi = sliding.pad_lo.clone();
            }
            AutoPad::SameUpper | AutoPad::SameLower => {
                for (axis, size) in spatial.iter().enumerate() {
                    let stride = Dim::from(sliding.stride[axis]);
                    let covered = (size.ceil_div(&stride) - 1) * &stride + sliding.extent(axis);
                    let total = Dim::max(&(covered - size), &Dim::ZERO);
                    (sliding.pad_lo[axis], sliding.pad_hi[axis]) = auto_pad.split(&total);
                }
            }
        }
        Ok(sliding)
    }

    /// Reads strides, dilations and pads, leaving auto_pad to the caller.
    pub(super) fn read_explicit(cx: &NodeCx<'_, '_>, rank: usize, window: Vec<usize>) -> Result<Sliding, Fault> {
        check_count("kernel_shape", window.len(), rank)?;
        let ones = || vec![1; rank];
        let stride = cx.sizes("strides")?.unwrap_or_else(ones);
        let dilation = cx.sizes("dilations")?.unwrap_or_else(ones);
        let pads = cx.ints("pads")?.filter(|pads| !pads.is_empty()).unwrap_or_else(|| vec![0; 2 * rank]);
        check_count("strides", stride.len(), rank)?;
        check_count("dilations", dilation.len(), rank)?;
        check_count("pads", pads.len(), 2 * rank)?;
        for (name, list) in [("kernel_shape", &window), ("strides", &stride), ("dilations", &dilation)] {
            if list.contains(&0) {
                return Err(Fault::Invalid(format!("attribute '{name}' has a 0; 1 or more was expected")));
            }
        }
        let pads: Vec<Dim> = pads.into_iter().map(Dim::from).collect();
        Ok(Sliding { window, stride, dilation, pad_lo: pads[..rank].to_vec(), pad_hi: pads[rank..].to_vec() })
    }

    /// Elements from the first to the last that a window covers on an axis.
    pub(super) fn extent(&self, axis: usize) -> Dim {
        (Dim::from(self.window[axis]) - 1) * Dim::from(self.dilation[axis]) + 1
    }

    /// How many windows fit on each axis. With `ceil` the last one may reach beyond the padding, but not start in the
    /// padding at the end.
    pub(super) fn output(&self, spatial: &[Dim], ceil: bool) -> Vec<Dim> {
        spatial
            .iter()
            .enumerate()
            .map(|(axis, size)| {
                let stride = Dim::from(self.stride[axis]);
                let room = size + &self.pad_lo[axis] + &self.pad_hi[axis] - self.extent(axis);
                if ceil {
                    let windows = room.ceil_div(&stride) + 1;
                    let starts = (size + &self.pad_lo[axis]).ceil_div(&stride);
                    Dim::min(&windows, &starts)
                } else {
                    room.floor_div(&stride) + 1
                }
            })
            .collect()
    }
}

impl AutoPad {
    /// Reads the attribute.
    pub(super) fn read(cx: &NodeCx<'_, '_>) -> Result<AutoPad, Fault> {
        match cx.string("auto_pad", "NOTSET")?.as_str() {
            "NOTSET" | "" => Ok(AutoPad::NotSet),
            "SAME_UPPER" => Ok(AutoPad::SameUpper),
            "SAME_LOWER" => Ok(AutoPad::SameLower),
            "VALID" => Ok(AutoPad::Valid),
            other => Err(Fault::Invalid(format!("attribute 'auto_pad' cannot be '{other}'"))),
        }
    }

    /// Padding at the start and at the end of an axis that is padded by `total`.
    pub(super) fn split(self, total: &Dim) -> (Dim, Dim) {
        let half = total.floor_div(&Dim::from(2));
        let rest = total - &half;
        if self == AutoPad::SameLower { (rest, half) } else { (half, rest) }
    }
}

fn check_count(name: &str, found: usize, expected: usize) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(Fault::Invalid(format!("attribute '{name}' has {found} entries; {expected} were expected")))
}
