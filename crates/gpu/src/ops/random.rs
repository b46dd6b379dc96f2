//! Random samples by Philox 4x32-10: element i depends on the key and on i alone, as in the reference. Samples are f64
//! until they are rounded to their type.

use precast_ir::op::{Normal, Uniform};
use precast_tensor::DType;

use crate::element::{float_literal, memory_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, axis_indices, offset_sum};
use crate::site::{Site, dense_strides};

/// Two uniform samples of 53 bits for an element.
const SAMPLES: &str = "\
struct Samples {
    f64 first, second;
};
DEVICE Samples samples_of(u64 key, u64 at) {
    u32 counter[4] = {(u32)at, (u32)(at >> 32), 0, 0};
    u32 keys[2] = {(u32)key, (u32)(key >> 32)};
    for (int round = 0; round < 10; round++) {
        const u64 first = (u64)counter[0] * 0xd2511f53ull, second = (u64)counter[2] * 0xcd9e8d57ull;
        const u32 next[4] = {(u32)(second >> 32) ^ counter[1] ^ keys[0], (u32)second,
                             (u32)(first >> 32) ^ counter[3] ^ keys[1], (u32)first};
        for (int word = 0; word < 4; word++) counter[word] = next[word];
        keys[0] += 0x9e3779b9u;
        keys[1] += 0xbb67ae85u;
    }
    const f64 unit = 1.0 / 9007199254740992.0;
    Samples samples;
    samples.first = (f64)((((u64)counter[1] << 32) | counter[0]) >> 11) * unit;
    samples.second = (f64)((((u64)counter[3] << 32) | counter[2]) >> 11) * unit;
    return samples;
}
";

/// Uniform samples.
pub fn lower_uniform(site: &Site, op: &Uniform) -> Option<Lowered> {
    let (low, range) = (float_literal(DType::F64, op.low), float_literal(DType::F64, op.high - op.low));
    lower(site, "uniform", op.to, op.key, &format!("{low} + {range} * samples.first"))
}

/// Normal samples by Box and Muller.
pub fn lower_normal(site: &Site, op: &Normal) -> Option<Lowered> {
    let (mean, deviation) = (float_literal(DType::F64, op.mean), float_literal(DType::F64, op.deviation));
    let radius = "of_sqrt(-2.0 * of_log(1.0 - samples.first))";
    let sample = format!("{mean} + {deviation} * {radius} * of_cos(6.283185307179586 * samples.second)");
    lower(site, "normal", op.to, op.key, &sample)
}

fn lower(site: &Site, entry: &str, dtype: DType, key: i64, sample: &str) -> Option<Lowered> {
    let (shape, strides) = (site.out_shape(0), site.out_strides(0));
    let row_major = dense_strides(&shape, false);
    let (indices, number) = if row_major == strides {
        (String::new(), "at".to_string())
    } else {
        let terms = row_major.iter().enumerate().map(|(axis, &stride)| (format!("i{axis}"), stride as i64));
        (axis_indices(&shape, &strides, "u64"), offset_sum(terms, "u64"))
    };
    let value = match dtype {
        DType::F64 => "sample",
        DType::F32 => "(f32)sample",
        DType::F16 => "to_f16(to_odd_f32(sample))",
        DType::BF16 => "to_bf16(to_odd_f32(sample))",
        _ => return None,
    };
    let body = format!(
        "{indices}const Samples samples = samples_of((u64)key, {number});\nconst f64 sample = {sample};\ny[at] = {value};\n"
    );
    let mut kernel = Kernel::new(entry, vec![Param::write(0, "y", memory_type(dtype)?)]).declare(SAMPLES);
    kernel.scalars = vec![("key", key)];
    Some(Lowered::one(entry, kernel.for_each(shape.iter().product(), "u64", &body)))
}
