//! Graph to Graph with the same meaning: one pass a file, lists of passes as data, a verifier after every pass, and the
//! analyses that need no target. Knows no file format and no target.
#![forbid(unsafe_code)]

pub mod absorb_pads;
pub mod approximate_gelu;
pub mod batch_axis;
mod block_weights;
pub mod cancel_logs;
pub mod cut_segments;
pub mod dynamic_product;
pub mod fast_math;
pub mod fold_constants;
pub mod fold_conv_1x1;
pub mod fold_factors;
pub mod fold_scales;
pub mod fold_zero_products;
pub mod fuse_attention;
pub mod fuse_depthwise;
pub mod fuse_epilogues;
pub mod fuse_gathers;
pub mod fuse_horizontal;
pub mod fuse_pointwise;
pub mod fuse_recurrent;
pub mod fuse_streams;
pub mod fuse_unpacks;
pub mod gather_rows;
pub mod hoist_scales;
pub mod hoist_softmax;
pub mod log;
pub mod merge_equal;
pub mod merge_transposes;
pub mod narrow_floats;
pub mod numerics;
mod pattern;
pub mod pipeline;
pub mod quantise_weights;
pub mod recognise_activations;
pub mod recognise_norms;
pub mod remove_identities;
pub mod replace_powers;
pub mod resolve_dims;
pub mod simplify_algebra;
pub mod simplify_concats;
pub mod step_costs;
pub mod strided_view;
pub mod widen_floats;

pub use batch_axis::{Grade, OutputRule, PadVerdict, explain, pad_verdict};
pub use fast_math::{FastMath, FastRewrite};
pub use gather_rows::gather_rows;
pub use log::{PassReport, Place, Reason};
pub use narrow_floats::narrow_floats;
pub use numerics::{ActivationPrecision, FloatPrecision, Numerics, WeightPrecision};
pub use pipeline::{CANONICAL, FUSED, Pass, PassError, PassOptions, remove_dead, run_passes, run_passes_with};
pub use step_costs::StepCosts;
pub use widen_floats::widen_floats;
