//! Softmax and normalisations in f32.

use precast_ir::op::{GroupNorm, LayerNorm, Lrn, RmsNorm, Softmax};
use precast_kernels::norm::{self, GroupNormShape};
use precast_kernels::softmax;
use precast_tensor::DType;

use crate::ops::around;
use crate::step::{Lowered, StepNode};

fn is_f32(step: &StepNode) -> bool {
    (0..step.input_count()).all(|input| step.dtype(input) == DType::F32)
}

/// Softmax over one axis.
pub fn lower_softmax(step: &StepNode, op: &Softmax) -> Result<Option<Lowered>, String> {
    if !is_f32(step) {
        return Ok(None);
    }
    let [outer, axis, inner] = around(&step.shape(0), op.axis);
    let log = op.log;
    Ok(Some(Lowered::plain("softmax", step, move |args, exec| {
        let (x, y) = (args.read::<f32>(0), args.write::<f32>(0));
        match (inner, log) {
            (1, false) => softmax::softmax(&exec, outer, axis, x, y),
            (1, true) => softmax::log_softmax(&exec, outer, axis, x, y),
            (_, false) => softmax::softmax_axis(&exec, outer, axis, inner, x, y),
            (_, true) => softmax::log_softmax_axis(&exec, outer, axis, inner, x, y),
        }
        Ok(())
    })))
}

/// Rows and columns of a normalisation from `axis` on, if the vectors that follow x have one element a column.
fn rows_and_columns(step: &StepNode, axis: usize) -> Option<(usize, usize)> {
    let shape = step.shape(0);
    let (rows, columns) = (shape[..axis].iter().product(), shape[axis..].iter().product());
    let tail = &shape[axis..];
    let fits = (1..step.input_count()).all(|input| {
        let own = step.shape(input);
        own.iter().product::<usize>() == columns && own.len() >= tail.len() && own[own.len() - tail.len()..] == *tail
    });
    (is_f32(step) && fits).then_some((rows, columns))
}

/// Layer norm with scale and optional bias.
pub fn lower_layer_norm(step: &StepNode, op: &LayerNorm) -> Result<Option<Lowered>, String> {
    let Some((rows, columns)) = rows_and_columns(step, op.axis) else { return Ok(None) };
    let (epsilon, has_bias) = (op.epsilon as f32, step.input_count() > 2);
    Ok(Some(Lowered::plain("layer_norm", step, move |args, exec| {
        let (x, scale) = (args.read::<f32>(0), args.read::<f32>(1));
        let bias = has_bias.then(|| args.read::<f32>(2));
        norm::layer_norm(&exec, rows, columns, x, Some(scale), bias, epsilon, args.write(0), None);
        Ok(())
    })))
}

/// RMS norm with scale.
pub fn lower_rms_norm(step: &StepNode, op: &RmsNorm) -> Result<Option<Lowered>, String> {
    let Some((rows, columns)) = rows_and_columns(step, op.axis) else { return Ok(None) };
    let epsilon = op.epsilon as f32;
    Ok(Some(Lowered::plain("rms_norm", step, move |args, exec| {
        let (x, scale) = (args.read::<f32>(0), args.read::<f32>(1));
        norm::rms_norm(&exec, rows, columns, x, Some(scale), epsilon, args.write(0));
        Ok(())
    })))
}

/// Group norm with scale and bias a channel.
pub fn lower_group_norm(step: &StepNode, op: &GroupNorm) -> Result<Option<Lowered>, String> {
    let shape = step.shape(0);
    if !is_f32(step) || op.groups == 0 || !shape[1].is_multiple_of(op.groups) {
        return Ok(None);
    }
    let channels_per_group = shape[1] / op.groups;
    let norm_shape = GroupNormShape {
        batch: shape[0],
        groups: op.groups,
        channels_per_group,
        elements: shape[2..].iter().product(),
    };
    let epsilon = op.epsilon as f32;
    Ok(Some(Lowered::plain("group_norm", step, move |args, exec| {
        let (x, scale, bias) = (args.read::<f32>(0), args.read::<f32>(1), args.read::<f32>(2));
        norm::group_norm(&exec, norm_shape, x, Some(scale), Some(bias), epsilon, args.write(0));
        Ok(())
    })))
}

/// Local response normalisation over channels.
pub fn lower_lrn(step: &StepNode, op: &Lrn) -> Result<Option<Lowered>, String> {
    let shape = step.shape(0);
    if !is_f32(step) || shape.len() < 2 {
        return Ok(None);
    }
    let (batch, channels, inner) = (shape[0], shape[1], shape[2..].iter().product());
    let (size, alpha, beta, bias) = (op.size, op.alpha as f32, op.beta as f32, op.bias as f32);
    Ok(Some(Lowered::plain("lrn", step, move |args, exec| {
        norm::lrn(&exec, batch, channels, inner, size, alpha, beta, bias, args.read(0), args.write(0));
        Ok(())
    })))
}
