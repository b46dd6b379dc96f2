//! The closed set of ops, declared in one table. A row gives an op's family, its name in the text form, its meaning
//! and its attributes; the struct, its printing, parsing and binding, and the `Op` enum are derived from the row.
//! `match` on `Op` without a wildcard makes every target decide on a new op at build time.

use std::collections::BTreeSet;

use precast_tensor::{Bindings, DType, Dim, Symbol, Tensor, Type};

use crate::attr::{Attr, AttrError, AttrReader, ConstantSource};
use crate::error::{EvalError, InferError};
use crate::graph::Graph;

/// A group of ops that share a file in every room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Family {
    Elementwise,
    Reduce,
    Matmul,
    Conv,
    Window,
    Norm,
    Sequence,
    Attention,
    Index,
    Layout,
    Quantize,
    Random,
    Control,
}

/// What each op's family file provides: its Type rule and its meaning.
pub trait Operation {
    /// Output Types from input Types. Dims may be symbolic.
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError>;
    /// Output values from input values: slow, obvious, and the meaning of the op.
    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError>;
}

/// One row of the op table, for generated docs.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Name in the text form.
    pub name: &'static str,
    /// The family, which is also the file stem in every room.
    pub family: Family,
    /// Meaning, as one paragraph.
    pub doc: &'static str,
    /// Attribute names and types in table order.
    pub attributes: &'static [(&'static str, &'static str)],
}

macro_rules! ops {
    ($( $family:ident: $(#[doc = $doc:literal])+ $op:ident $name:literal { $( $attr:ident: $ty:ty ),* $(,)? } )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq)]
            #[allow(missing_docs)]
            pub struct $op { $( pub $attr: $ty, )* }

            impl From<$op> for Op {
                fn from(op: $op) -> Op { Op::$op(op) }
            }
        )+

        /// What one node computes.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Op { $( $op($op), )+ }

        impl Op {
            /// The whole table, in order.
            pub const TABLE: &'static [OpInfo] = &[ $( OpInfo {
                name: $name,
                family: Family::$family,
                doc: concat!($($doc, "\n"),+),
                attributes: &[ $( (stringify!($attr), stringify!($ty)), )* ],
            }, )+ ];

            /// Name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $( Op::$op(_) => $name, )+ }
            }

            /// The family, which is also the file stem in every room.
            pub fn family(&self) -> Family {
                match self { $( Op::$op(_) => Family::$family, )+ }
            }

            /// Attributes as the text form prints them, in table order.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                match self { $( #[allow(unused_variables)] Op::$op(op) => vec![ $( (stringify!($attr), Attr::print(&op.$attr)), )* ], )+ }
            }

            /// The op called `name` with the attributes that `reader` yields in table order.
            pub fn parse(name: &str, #[allow(unused_variables)] reader: &mut AttrReader<'_>) -> Result<Op, AttrError> {
                match name {
                    $( $name => Ok(Op::$op($op { $( $attr: reader.read(stringify!($attr))?, )* })), )+
                    _ => Err(reader.unknown_op(name)),
                }
            }

            /// The same op with symbols replaced by numbers.
            pub fn bind(&self, #[allow(unused_variables)] bindings: &Bindings) -> Op {
                match self { $( #[allow(unused_variables)] Op::$op(op) => Op::$op($op { $( $attr: Attr::bind(&op.$attr, bindings), )* }), )+ }
            }

            /// Adds the symbols of every attribute to `symbols`.
            pub fn collect_symbols(&self, #[allow(unused_variables)] symbols: &mut BTreeSet<Symbol>) {
                match self { $( #[allow(unused_variables)] Op::$op(op) => { $( op.$attr.collect_symbols(symbols); )* } )+ }
            }

            /// The graphs among its attributes, with the attributes' names.
            pub fn bodies(&self) -> Vec<(&'static str, &Graph)> {
                match self {
                    $( #[allow(unused_variables)] Op::$op(op) => {
                        let bodies: &[(&'static str, Option<&Graph>)] = &[ $( (stringify!($attr), op.$attr.as_body()), )* ];
                        bodies.iter().filter_map(|(name, body)| Some((*name, (*body)?))).collect()
                    } )+
                }
            }

            /// Output Types from input Types.
            pub fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
                match self { $( Op::$op(op) => op.infer(inputs), )+ }
            }

            /// Output values from input values, by the op's meaning.
            pub fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
                match self { $( Op::$op(op) => op.eval(inputs), )+ }
            }
        }
    };
}

ops! {
    Elementwise:
    /// A function of one element. `alpha` and `beta` are its parameters where it has any, else 0.
    Unary "unary" { func: UnaryFn, alpha: f64, beta: f64 }
    Elementwise:
    /// A function of two elements, with NumPy broadcasting; both inputs have one element type.
    Binary "binary" { func: BinaryFn }
    Elementwise:
    /// A comparison of two elements, with NumPy broadcasting, giving bool. Comparisons with NaN are false.
    Compare "compare" { func: CompareFn }
    Elementwise:
    /// `select(c, x, y)` is x where c is true, else y, with NumPy broadcasting.
    Select "select" {}
    Elementwise:
    /// Limits elements to `lo..=hi`: `min(max(x, lo), hi)`; NaN stays NaN.
    Clamp "clamp" { lo: f64, hi: f64 }
    Elementwise:
    /// Converts elements. Float to integer truncates, and saturates unless the integer has less than 8 bits; with `saturate`
    /// a float beyond an 8-bit float's range becomes its largest value. Integer to integer wraps.
    Cast "cast" { to: DType, saturate: bool }
    Elementwise:
    /// Reads the same bytes as another element type of the same size.
    Bitcast "bitcast" { to: DType }

    Reduce:
    /// Reduces over `axes`; with `keep_dims` the axes stay with size 1.
    Reduce "reduce" { func: ReduceFn, axes: Vec<usize>, keep_dims: bool }
    Reduce:
    /// Index (i64) of the largest or smallest element along `axis`; of equal ones the first, or the last with `last`.
    ArgReduce "arg_reduce" { func: ArgFn, axis: usize, keep_dims: bool, last: bool }
    Reduce:
    /// Running sum or product along `axis`.
    Cumulate "cumulate" { func: CumulateFn, axis: usize, exclusive: bool, reverse: bool }

    Matmul:
    /// Matrix product over the last two axes, batch axes broadcast; `transpose_a` and `transpose_b` swap the last two
    /// axes of an operand first. Both operands have rank 2 or more.
    Matmul "matmul" { transpose_a: bool, transpose_b: bool }
    Matmul:
    /// 8-bit matrix product to i32: inputs a, b, zero point of a, zero point of b. A zero point is a scalar, or for a one a
    /// row (shape [.., M, 1] after broadcasting) and for b one a column (shape [N] or [.., 1, N]).
    MatmulInt "matmul_int" {}

    Conv:
    /// Convolution of x [N, C, spatial..] with a filter [O, C/groups, spatial..] and, as third input, an optional bias [O].
    Conv "conv" { stride: Vec<usize>, pad_lo: Vec<Dim>, pad_hi: Vec<Dim>, dilation: Vec<usize>, groups: usize }
    Conv:
    /// 8-bit convolution to i32: inputs x, filter, zero point of x (scalar), zero point of the filter (scalar or [O]).
    /// Padding has the value of x's zero point.
    ConvInt "conv_int" { stride: Vec<usize>, pad_lo: Vec<Dim>, pad_hi: Vec<Dim>, dilation: Vec<usize>, groups: usize }
    Conv:
    /// Transposed convolution of x [N, C, spatial..] with a filter [C, O/groups, spatial..] and an optional bias [O].
    ConvTranspose "conv_transpose" { stride: Vec<usize>, pad_lo: Vec<Dim>, pad_hi: Vec<Dim>, output_pad: Vec<usize>, dilation: Vec<usize>, groups: usize }

    Window:
    /// Pools windows of x [N, C, spatial..]. `output` gives the spatial output sizes (ceil_mode is resolved before).
    /// Average counts padding inside the declared pads when `count_pad`; p is the exponent of the lp norm.
    Pool "pool" { func: PoolFn, window: Vec<usize>, stride: Vec<usize>, pad_lo: Vec<Dim>, pad_hi: Vec<Dim>, dilation: Vec<usize>, output: Vec<Dim>, count_pad: bool, p: i64 }
    Window:
    /// For max pooling as in `pool`: the flat index (i64) of each maximum in x; with `column_major` the spatial part is
    /// counted column by column.
    PoolIndices "pool_indices" { window: Vec<usize>, stride: Vec<usize>, pad_lo: Vec<Dim>, pad_hi: Vec<Dim>, dilation: Vec<usize>, output: Vec<Dim>, column_major: bool }
    Window:
    /// Pools regions of interest: inputs x [N, C, H, W], rois [R, 4], batch indices [R].
    RoiAlign "roi_align" { func: PoolFn, output_height: usize, output_width: usize, sampling_ratio: usize, spatial_scale: f64, half_pixel: bool }
    Window:
    /// Resizes every axis of x to `output`. `scales` are the factors of the coordinate formula; `roi` (start then end
    /// of every axis) is used by the tf_crop_and_resize coordinates, which give `extrapolation` outside x.
    Resize "resize" { func: ResizeFn, coordinates: CoordinateFn, nearest: NearestFn, output: Vec<Dim>, scales: Vec<f64>, cubic_a: f64, exclude_outside: bool, antialias: bool, roi: Vec<f64>, extrapolation: f64 }
    Window:
    /// Samples x [N, C, spatial..] at the normalised coordinates of grid [N, output spatial.., spatial rank].
    GridSample "grid_sample" { func: ResizeFn, padding: GridPad, align_corners: bool }

    Norm:
    /// Softmax over `axis`, or its logarithm.
    Softmax "softmax" { axis: usize, log: bool }
    Norm:
    /// (x - mean) / sqrt(variance + epsilon) over the axes from `axis` on, times scale, plus bias where given
    /// (inputs x, scale, optional bias; scale and bias broadcast to the normalised axes). Statistics in f32 or wider.
    LayerNorm "layer_norm" { axis: usize, epsilon: f64 }
    Norm:
    /// x / sqrt(mean(x^2) + epsilon) over the axes from `axis` on, times scale.
    RmsNorm "rms_norm" { axis: usize, epsilon: f64 }
    Norm:
    /// Normalises groups of channels of x [N, C, spatial..] over the group's channels and all spatial axes, then scale
    /// and bias a channel (inputs x, scale [C], bias [C]). Instance norm has groups = C.
    GroupNorm "group_norm" { groups: usize, epsilon: f64 }
    Norm:
    /// x / (bias + alpha/size * sum of squares over `size` neighbouring channels) ^ beta.
    Lrn "lrn" { size: usize, alpha: f64, beta: f64, bias: f64 }

    Sequence:
    /// A whole recurrent layer over time, both directions as ONNX defines them: inputs x [T, B, I], w [D, G*H, I],
    /// r [D, G*H, H], then in this order those that are present: bias [D, 2*G*H], lengths i32 [B], initial h [D, B, H],
    /// initial c [D, B, H], peepholes [D, 3*H]. Outputs y [T, D, B, H], y_h [D, B, H] and for lstm y_c [D, B, H]. With
    /// `rounds_state`, which only lstm has, h is rounded before each product with r: every row of it to 256 levels that
    /// span its extremes and 0, which is one of them.
    Recurrent "recurrent" { func: RecurrentFn, direction: Direction, hidden: usize, activations: Vec<UnaryFn>, alphas: Vec<f64>, betas: Vec<f64>, clip: f64, input_forget: bool, linear_before_reset: bool, rounds_state: bool, bias: bool, lengths: bool, initial_h: bool, initial_c: bool, peepholes: bool }

    Attention:
    /// Attention of new tokens behind cached ones, in which `heads / kv_heads` query heads share a key head. Inputs: queries,
    /// keys and values of the new tokens side by side [B, L, (heads + 2·kv_heads)·D], cached keys and cached values
    /// [B, kv_heads, S, D], i32 [B] tokens that are cached, token p of a row in slot p modulo S; then those that are present:
    /// tables of cosines and of sines [P, R/2] unless `rotary` is none, positions i64 [B, L], sinks [heads]. The first R
    /// elements of each query and key are turned by the row of the tables at their position: the cached tokens and those
    /// before it, unless positions are given, and never beyond the last row. A query sees cached tokens, and new ones up to
    /// itself, of which the last `window` unless that is 0. A score is q·k·scale; with `softcap` c that is not 0 it
    /// becomes c·tanh(score/c). A sink is one more score, without a value. Where it is `paged`, cached keys and values are N
    /// pages that rows share, [N, kv_heads, S, D], and a last input i32 [B, W] has the pages of each row: token p of a row is
    /// the one of p modulo S in page p / S of the row's; those behind its W pages, or in a page that there is not, are not
    /// seen. Outputs: y [B, L, heads·D], and the turned keys and the values of the new tokens [B, kv_heads, L, D].
    CachedAttention "cached_attention" { heads: usize, kv_heads: usize, scale: f64, softcap: f64, window: usize, rotary: RotaryFn, positions: bool, sinks: bool, paged: bool }

    Index:
    /// Caches with new tokens behind the cached ones: inputs i32 [B] tokens that are cached, i32 [B] new tokens that count, then
    /// for each cache that [B, H, S, D] and its new tokens [B, H, L, D]. Token p of a row lies in slot p modulo S; of more new
    /// tokens than slots the last ones stay. Where they are `paged`, a third input i32 [B, W] has the pages of each row, as
    /// `cached_attention` has them, and caches are pages [N, H, S, D]: tokens behind the W pages of a row, or in a page that
    /// there is not, are not kept, and no two rows have new tokens in one page. Outputs: the caches.
    AppendToCache "append_to_cache" { paged: bool }
    Index:
    /// Slices of x along `axis` at integer indices; negative ones count from the end.
    Gather "gather" { axis: usize }
    Index:
    /// Elements of x at indices along `axis`, one for each element of the index tensor.
    GatherElements "gather_elements" { axis: usize }
    Index:
    /// Slices of x at index tuples in the last axis of the index tensor, after `batch_axes` shared leading axes.
    GatherNd "gather_nd" { batch_axes: usize }
    Index:
    /// x with updates written (or combined by `func`) at indices along `axis`: inputs x, indices, updates.
    ScatterElements "scatter_elements" { func: ScatterFn, axis: usize }
    Index:
    /// x with slices written (or combined by `func`) at index tuples: inputs x, indices, updates.
    ScatterNd "scatter_nd" { func: ScatterFn }
    Index:
    /// The `k` largest or smallest elements along `axis` and their i64 indices, sorted; of equal ones the lower index first.
    Topk "topk" { axis: usize, k: Dim, largest: bool }
    Index:
    /// Index tuples of the non-zero elements as i64 [rank, count]; `count` is a symbol of its own until the node has run.
    NonZero "nonzero" { count: Dim }
    Index:
    /// Greedy non-maximum suppression: inputs boxes [B, N, 4], scores [B, C, N]; output i64 [count, 3] of
    /// (batch, class, box). `count` is a symbol of its own until the node has run.
    Nms "nms" { count: Dim, center_point: bool, boxes_max: Dim, iou_threshold: f64, score_threshold: f64, has_score_threshold: bool }

    Layout:
    /// start + i * step for i in 0..length, as `to`.
    Iota "iota" { to: DType, start: Dim, step: Dim, length: Dim }
    Layout:
    /// The value of a dim as an i64 scalar.
    DimValue "dim_value" { dim: Dim }
    Layout:
    /// The same elements in row-major order under another shape.
    Reshape "reshape" { shape: Vec<Dim> }
    Layout:
    /// Output axis i is input axis perm[i].
    Transpose "transpose" { perm: Vec<usize> }
    Layout:
    /// NumPy broadcast of x to `shape` (two-way: a size-1 entry of `shape` keeps the input's size).
    Broadcast "broadcast" { shape: Vec<Dim> }
    Layout:
    /// Elements start + i * step, i in 0..size, of every axis; in range by construction.
    Slice "slice" { start: Vec<Dim>, step: Vec<i64>, size: Vec<Dim> }
    Layout:
    /// Inputs joined along `axis`.
    Concat "concat" { axis: usize }
    Layout:
    /// x with `lo` and `hi` elements added (negative: removed) on every axis; the second input is the constant mode's scalar.
    Pad "pad" { func: PadFn, lo: Vec<Dim>, hi: Vec<Dim> }

    Quantize:
    /// saturate(round(x / scale) + zero_point) to `to`; rounding is half to even. Inputs x, scale, optional zero point: a scalar, a vector
    /// along `axis`, or blocks of `block` along `axis`. The quotient is formed in `precision`.
    Quantize "quantize" { to: DType, axis: usize, block: usize, saturate: bool, precision: DType }
    Quantize:
    /// (x - zero_point) * scale as `to`; inputs and granularity as in `quantize`.
    Dequantize "dequantize" { to: DType, axis: usize, block: usize }
    Quantize:
    /// Small integers that lie in bytes (u8), several of the last axis in each, the first in the lowest bits, as elements of
    /// type `to`, of 2, 4 or 8 bits. Signed ones are counted from the middle level.
    Unpack "unpack" { to: DType }

    Random:
    /// Uniform samples in low..high from a counter-based generator, the same on every target.
    Uniform "uniform" { to: DType, shape: Vec<Dim>, low: f64, high: f64, key: i64 }
    Random:
    /// Normal samples from a counter-based generator, the same on every target.
    Normal "normal" { to: DType, shape: Vec<Dim>, mean: f64, deviation: f64, key: i64 }

    Control:
    /// Runs `then_body` or `else_body` by a bool scalar: inputs condition, then the captures that both bodies take.
    If "if" { then_body: Graph, else_body: Graph }
    Control:
    /// ONNX loop: inputs trip count (i64), condition (bool), `carried` values, then captures. The body takes iteration
    /// number, condition, carried values and captures, and gives condition, carried values and one slice of each scan output.
    Loop "loop" { body: Graph, carried: usize }
    Control:
    /// A small closed graph compiled as one kernel; its inputs are the node's inputs, its outputs the node's outputs.
    Fused "fused" { body: Graph }
}

macro_rules! functions {
    ($( $(#[doc = $doc:literal])+ $name:ident { $( $variant:ident $text:literal ),+ $(,)? } )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[allow(missing_docs)]
            pub enum $name { $( $variant, )+ }

            impl $name {
                /// Every function, in table order.
                pub const ALL: &'static [$name] = &[ $( $name::$variant, )+ ];
                /// Name in the text form.
                pub fn name(self) -> &'static str {
                    match self { $( $name::$variant => $text, )+ }
                }
            }

            impl Attr for $name {
                fn print(&self) -> String { self.name().to_string() }
                fn read(text: &str, _: &dyn ConstantSource) -> Option<$name> {
                    $name::ALL.iter().copied().find(|function| function.name() == text)
                }
            }
        )+
    };
}

functions! {
    /// Functions of one element. `logistic` is `sigmoid` where only the absolute error matters.
    UnaryFn {
        Abs "abs", Neg "neg", Sign "sign", Recip "recip", Sqrt "sqrt", Rsqrt "rsqrt", Exp "exp", Expm1 "expm1", Log "log",
        Log1p "log1p", Sin "sin", Cos "cos", Tan "tan", Asin "asin", Acos "acos", Atan "atan", Sinh "sinh", Cosh "cosh",
        Tanh "tanh", Asinh "asinh", Acosh "acosh", Atanh "atanh", Erf "erf", Ceil "ceil", Floor "floor", Round "round",
        Not "not", BitNot "bitnot", IsNan "isnan", IsInf "isinf", Relu "relu", Leaky "leaky", Elu "elu", Selu "selu",
        Celu "celu", GeluErf "gelu_erf", GeluTanh "gelu_tanh", QuickGelu "quick_gelu", Silu "silu", Mish "mish",
        Sigmoid "sigmoid", Logistic "logistic", HardSigmoid "hard_sigmoid", HardSwish "hard_swish", Softplus "softplus",
        Softsign "softsign", Shrink "shrink", Thresholded "thresholded", Affine "affine", ScaledTanh "scaled_tanh",
    }
    /// Functions of two elements. `mod` takes the sign of the divisor, `fmod` that of the dividend.
    BinaryFn {
        Add "add", Sub "sub", Mul "mul", Div "div", Pow "pow", Mod "mod", Fmod "fmod", Min "min", Max "max", And "and",
        Or "or", Xor "xor", BitAnd "bitand", BitOr "bitor", BitXor "bitxor", Shl "shl", Shr "shr", Prelu "prelu",
    }
    /// Comparisons.
    CompareFn { Eq "eq", Lt "lt", Le "le", Gt "gt", Ge "ge" }
    /// Reductions.
    ReduceFn {
        Sum "sum", Mean "mean", Prod "prod", Max "max", Min "min", L1 "l1", L2 "l2", SumSq "sumsq", LogSum "logsum",
        LogSumExp "logsumexp", Any "any", All "all",
    }
    /// Which element an index reduction looks for.
    ArgFn { Max "max", Min "min" }
    /// Running combinations.
    CumulateFn { Sum "sum", Prod "prod" }
    /// Pooling functions.
    PoolFn { Max "max", Avg "avg", Lp "lp" }
    /// Interpolations.
    ResizeFn { Nearest "nearest", Linear "linear", Cubic "cubic" }
    /// How an output coordinate of a resize becomes an input coordinate.
    CoordinateFn {
        HalfPixel "half_pixel", HalfPixelSymmetric "half_pixel_symmetric", PytorchHalfPixel "pytorch_half_pixel",
        AlignCorners "align_corners", Asymmetric "asymmetric", TfHalfPixel "tf_half_pixel_for_nn", TfCrop "tf_crop_and_resize",
    }
    /// Which neighbour the nearest resize takes.
    NearestFn { RoundPreferFloor "round_prefer_floor", RoundPreferCeil "round_prefer_ceil", Floor "floor", Ceil "ceil" }
    /// What lies outside a sampled image.
    GridPad { Zeros "zeros", Border "border", Reflection "reflection" }
    /// Recurrent cells.
    RecurrentFn { Rnn "rnn", Gru "gru", Lstm "lstm" }
    /// Order of time in a recurrent layer.
    Direction { Forward "forward", Reverse "reverse", Bidirectional "bidirectional" }
    /// Which elements of a head are turned together: those half of the turned ones apart, or neighbours.
    RotaryFn { None "none", Half "half", Interleaved "interleaved" }
    /// How an update joins what is there.
    ScatterFn { Replace "replace", Add "add", Mul "mul", Min "min", Max "max" }
    /// What padding holds.
    PadFn { Constant "constant", Reflect "reflect", Edge "edge", Wrap "wrap" }
}
