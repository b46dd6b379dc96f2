//! Sizes of a product that are parameters of its kernel instead of constants of its text: products that differ in nothing else
//! share the kernel, so a model with many convolutions has fewer to compile, and every further Bucket of it adds less.

use std::fmt::Write as _;

use crate::kernel::DIVISOR;
use crate::ops::conv::{ConvSizes, Windows};
use crate::ops::product::Product;
use crate::ops::tiles::{Tactic, Tile};

/// Rows that `Divisor` can divide.
const ROWS_MAX: usize = i32::MAX as usize;
/// Channels in and out come in such numbers where sizes are parameters. Other convolutions are small, and for those the little that
/// a parameter costs is too much.
const CHANNEL_GRAIN: usize = 64;

/// How the text of a product names its sizes, and which of them its kernel is given.
pub(crate) struct SizeText {
    /// `struct Sizes` and the names that stand for its members.
    pub text: String,
    /// Parameters of the kernel after its other ones.
    pub parameters: String,
    /// The kernel's value of type `Sizes`.
    pub value: String,
    /// What the parameters are.
    pub scalars: Vec<i64>,
    /// What ends the text, so that another one may follow it in one file.
    pub end: String,
}

impl SizeText {
    /// All sizes are constants of the text.
    pub fn constant(columns: usize) -> SizeText {
        let text = format!("struct Sizes {{}};\nconstexpr int N = {columns};\n");
        let (parameters, end) = (String::new(), String::new());
        SizeText { text, parameters, value: "Sizes{}".to_string(), scalars: Vec::new(), end }
    }

    /// Those of a product under a tactic.
    pub fn of(product: &Product, tactic: &Tactic) -> SizeText {
        if !is_at_run_time(product, tactic) {
            return SizeText::constant(product.mnk[1]);
        }
        let [_, n, k] = product.mnk;
        let mut members = vec![Member::number("N", n), Member::number("K", k)];
        let mut text = DIVISOR.to_string();
        members.extend(match &product.windows {
            Some(windows) if !is_of_points(product) => window_members(&windows.sizes),
            points => point_members(points.as_ref().map(|windows| &windows.sizes)),
        });
        let fields = members.iter().map(|member| format!("    {} {};\n", member.ty, member.name()));
        let _ = writeln!(text, "struct Sizes {{\n{}}};", fields.collect::<String>());
        let mut end = "#undef B_PITCH\n".to_string();
        text.push_str("#define B_PITCH (i64)K\n");
        for member in members.iter().filter(|member| member.ty != DIVISOR_TYPE) {
            let _ = writeln!(text, "#define {} sizes.{}", member.word, member.name());
            let _ = writeln!(end, "#undef {}", member.word);
        }
        let parameters = members.iter().map(|member| format!(", i64 {}", member.name())).collect();
        let values: Vec<String> = members.iter().map(Member::value).collect();
        let value = format!("Sizes{{{}}}", values.join(", "));
        SizeText { text, parameters, value, scalars: members.iter().map(|member| member.scalar).collect(), end }
    }

    /// Whether the kernel is given the sizes.
    pub fn is_at_run_time(&self) -> bool {
        !self.scalars.is_empty()
    }
}

/// Whether the text of a product needs no more of its sizes than a kernel can be given: a convolution of one group, channels
/// last, whose results lie row by row.
pub(crate) fn is_at_run_time(product: &Product, tactic: &Tactic) -> bool {
    let [m, n, k] = product.mnk;
    let is_tiled = match tactic.tile {
        Tile::Mma { .. } | Tile::Group { .. } => true,
        Tile::Fma { .. } | Tile::Gemv { .. } | Tile::Attention { .. } => false,
    };
    let is_a_plain = match &product.windows {
        Some(windows) => {
            let sizes = &windows.sizes;
            !windows.is_channels_first && sizes.input[0] == 1 && sizes.output[0] == 1 && sizes.x_strides[1] == 1
        }
        None => product.a.is_by_rows && product.a.pitch == k,
    };
    let is_b_plain = product.b.is_by_rows && product.b.pitch == k;
    let is_end_plain = product.coordinates.place() == format!("row * {n} + column") && !product.epilogue.reads_rows;
    let is_conv = product.is_grouped && product.count == 1;
    let has_grain = n.is_multiple_of(CHANNEL_GRAIN) && k.is_multiple_of(CHANNEL_GRAIN);
    is_tiled && is_conv && has_grain && m <= ROWS_MAX && is_a_plain && is_b_plain && is_end_plain
}

/// Whether the rows of a product are places of images: windows of one place inside the image.
pub(crate) fn is_of_points(product: &Product) -> bool {
    let is_point = |windows: &Windows| windows.sizes.taps() == 1 && windows.sizes.pad == [0; 3];
    product.windows.as_ref().is_none_or(is_point)
}

const DIVISOR_TYPE: &str = "Divisor";

/// A member of `Sizes`.
struct Member {
    ty: &'static str,
    /// What texts call it.
    word: &'static str,
    scalar: i64,
}

impl Member {
    fn number(word: &'static str, number: usize) -> Member {
        Member { ty: "i32", word, scalar: number as i64 }
    }

    fn wide(word: &'static str, number: usize) -> Member {
        Member { ty: "i64", word, scalar: number as i64 }
    }

    fn divisor(word: &'static str, number: usize) -> Member {
        Member { ty: DIVISOR_TYPE, word, scalar: packed_divisor(number) }
    }

    fn name(&self) -> String {
        self.word.to_lowercase()
    }

    /// The member's value from the kernel's parameter of its name.
    fn value(&self) -> String {
        match self.ty {
            DIVISOR_TYPE => format!("divisor({})", self.name()),
            ty => format!("({ty}){}", self.name()),
        }
    }
}

/// What differs between convolutions of the same kernel and dilation.
fn window_members(sizes: &ConvSizes) -> Vec<Member> {
    let ([_, in_h, in_w], [_, out_h, out_w]) = (sizes.input, sizes.output);
    let [x_n, _, _, x_h, x_w] = sizes.x_strides;
    let channels = sizes.channels / sizes.groups;
    vec![
        Member::number("IN_H", in_h),
        Member::number("IN_W", in_w),
        Member::number("OUT_H", out_h),
        Member::number("OUT_W", out_w),
        Member::wide("X_N", x_n),
        Member::number("X_H", x_h),
        Member::number("X_W", x_w),
        Member::number("GROUP_CHANNELS", channels),
        Member::number("STRIDE_H", sizes.stride[1]),
        Member::number("STRIDE_W", sizes.stride[2]),
        Member::number("PAD_H", sizes.pad[1]),
        Member::number("PAD_W", sizes.pad[2]),
        Member::divisor("BY_IMAGE", out_h * out_w),
        Member::divisor("BY_LINE", out_w),
        Member::divisor("BY_CHANNELS", channels),
    ]
}

/// What differs between convolutions of one place a window: how the places lie, of those that are not all of them.
fn point_members(strided: Option<&ConvSizes>) -> Vec<Member> {
    let number = |number: &dyn Fn(&ConvSizes) -> usize, other: usize| strided.map_or(other, number);
    vec![
        Member::number("IS_STRIDED", usize::from(strided.is_some())),
        Member::wide("IMAGE_PITCH", number(&|sizes| sizes.x_strides[0], 0)),
        Member::number("LINE_PITCH", number(&|sizes| sizes.stride[1] * sizes.x_strides[3], 0)),
        Member::number("POINT_PITCH", number(&|sizes| sizes.stride[2] * sizes.x_strides[4], 0)),
        Member::number("OUT_W", number(&|sizes| sizes.output[2], 1)),
        Member::number("PLACES", number(&|sizes| sizes.output[1] * sizes.output[2], 1)),
        Member::divisor("BY_IMAGE", number(&|sizes| sizes.output[1] * sizes.output[2], 1)),
        Member::divisor("BY_LINE", number(&|sizes| sizes.output[2], 1)),
    ]
}

/// A divisor of numbers below 2³¹ as `Divisor` takes it: with 2ˡ the first power of two that is not below it, the shift is 31 + l
/// and the factor 2 to that power over the divisor, rounded up, which is less than 2³² and too large by less than one part in 2³¹.
fn packed_divisor(by: usize) -> i64 {
    let shift = 31 + by.next_power_of_two().trailing_zeros();
    let factor = (1u64 << shift).div_ceil(by as u64);
    (u64::from(shift) << 32 | factor) as i64
}

/// The lines that windows read: sizes that are constants either way, and divisions.
pub(crate) fn window_text(windows: &Windows, is_at_run_time: bool) -> String {
    let sizes = &windows.sizes;
    let mut text = sizes.kernel_constants();
    if is_at_run_time {
        let [_, c, d, _, _] = sizes.x_strides;
        let _ = writeln!(text, "constexpr int IN_D = 1, OUT_D = 1, X_C = {c}, X_D = {d};");
        let _ = writeln!(text, "constexpr int STRIDE_D = {}, PAD_D = {};", sizes.stride[0], sizes.pad[0]);
    } else {
        text.push_str(&sizes.stride_constants());
        text.push_str(&sizes.size_constants());
    }
    let _ = writeln!(text, "constexpr bool CHANNELS_FIRST = {};", windows.is_channels_first);
    let [image, line, tap] = match is_at_run_time {
        true => ["sizes.by_image.divide((u32)row)", "sizes.by_line.divide(place)", "sizes.by_channels.divide(k)"],
        false => ["row / (OUT_D * OUT_H * OUT_W)", "place / OUT_W", "k / GROUP_CHANNELS"],
    };
    let _ = writeln!(text, "DEVICE i64 image_of(const Sizes &sizes, i64 row) {{ return {image}; }}");
    let _ = writeln!(text, "DEVICE int line_of(const Sizes &sizes, int place) {{ return {line}; }}");
    let _ = writeln!(text, "DEVICE int tap_of(const Sizes &sizes, int k) {{ return {tap}; }}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_divisor_divides_every_number_below_two_to_the_31() {
        let last = (1u64 << 31) - 1;
        for by in (1..=70).chain([112 * 112, 12_544, 65_535, 65_536, 65_537, (1 << 30) - 1, 1 << 30]) {
            let packed = packed_divisor(by);
            let (factor, shift) = (packed as u64 & 0xffff_ffff, (packed as u64) >> 32);
            let by = by as u64;
            let near = |x: u64| [x.saturating_sub(1), x, x + 1];
            let numbers = (0..200).chain(near(by)).chain(near(last / by * by)).chain([last - 1, last]);
            for x in numbers.filter(|&x| x <= last) {
                assert_eq!((x * factor) >> shift, x / by, "{x} / {by}");
            }
        }
    }
}
