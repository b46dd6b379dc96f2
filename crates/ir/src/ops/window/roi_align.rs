//! Pooling of regions of interest from samples between pixels. The maximum is taken over the four weighted neighbours of
//! every sample, not over interpolated samples: that is what ONNX tests and what models were trained with.

use precast_tensor::{Tensor, Type};

use crate::error::{EvalError, InferError};
use crate::op::{Operation, PoolFn, RoiAlign};
use crate::ops::function::max_float;
use crate::ops::shape::{
    axis_index, check_arity, check_same_dtype, count, dtype_error, infer_shape, read_floats, read_ints, same_dim,
    write_floats,
};

const ROI_ALIGN: &str = "roi_align";
/// A region that needs more samples along one axis of a bin is larger than any image.
const BIN_SAMPLES_MAX: usize = 1 << 20;

impl Operation for RoiAlign {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        check_arity(ROI_ALIGN, inputs, 3..=3)?;
        let (x, rois, batches) = (inputs[0], inputs[1], inputs[2]);
        if !x.dtype.is_float() || !batches.dtype.is_int() {
            return Err(dtype_error(ROI_ALIGN, if batches.dtype.is_int() { x.dtype } else { batches.dtype }));
        }
        check_same_dtype(ROI_ALIGN, x, rois)?;
        let ranks_fit = x.dims.len() == 4 && rois.dims.len() == 2 && batches.dims.len() == 1;
        if !ranks_fit
            || same_dim(&rois.dims[1], &4.into()).is_none()
            || same_dim(&rois.dims[0], &batches.dims[0]).is_none()
        {
            let reason = format!("{x}, {rois} and {batches} found where [N,C,H,W], [R,4] and [R] are expected");
            return Err(InferError::new(ROI_ALIGN, reason));
        }
        if self.func == PoolFn::Lp {
            return Err(InferError::new(ROI_ALIGN, "regions are pooled by max or avg"));
        }
        let size = [self.output_height.into(), self.output_width.into()];
        let dims = [rois.dims[0].clone(), x.dims[1].clone()].into_iter().chain(size).collect();
        Ok(vec![Type { dtype: x.dtype, dims }])
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let (dtype, shape) = infer_shape(ROI_ALIGN, self, inputs)?;
        let x = read_floats(&inputs[0]);
        let rois = read_floats(&inputs[1]);
        let batches = read_ints(ROI_ALIGN, &inputs[2])?;
        let &[images, channels, height, width] = inputs[0].shape() else {
            return Err(EvalError::value(ROI_ALIGN, "x has rank 4"));
        };
        let mut output = Vec::with_capacity(count(&shape));
        for (roi, &batch) in rois.chunks_exact(4).zip(&batches) {
            let image = axis_index(ROI_ALIGN, batch, images)?;
            let columns = Axis::new(self, roi[0], roi[2], self.output_width, width)?;
            let rows = Axis::new(self, roi[1], roi[3], self.output_height, height)?;
            for channel in 0..channels {
                let plane = &x[(image * channels + channel) * height * width..][..height * width];
                for row in 0..self.output_height {
                    for column in 0..self.output_width {
                        output.push(self.pool(plane, width, rows.samples(row), columns.samples(column)));
                    }
                }
            }
        }
        Ok(vec![write_floats(ROI_ALIGN, dtype, &shape, &output)?])
    }
}

impl RoiAlign {
    fn pool(&self, plane: &[f64], width: usize, rows: Vec<Sample>, columns: Vec<Sample>) -> f64 {
        let sample_count = (rows.len() * columns.len()).max(1);
        let mut pooled: Option<f64> = None;
        for row in &rows {
            for column in &columns {
                let terms = weighted_neighbours(plane, width, row, column);
                let sample = match self.func {
                    PoolFn::Max => terms.into_iter().fold(f64::NEG_INFINITY, max_float),
                    PoolFn::Avg | PoolFn::Lp => terms.into_iter().sum(),
                };
                pooled = Some(match (pooled, self.func) {
                    (None, _) => sample,
                    (Some(pooled), PoolFn::Max) => max_float(pooled, sample),
                    (Some(pooled), PoolFn::Avg | PoolFn::Lp) => pooled + sample,
                });
            }
        }
        match self.func {
            PoolFn::Max => pooled.unwrap_or(0.0),
            PoolFn::Avg | PoolFn::Lp => pooled.unwrap_or(0.0) / sample_count as f64,
        }
    }
}

/// A sample along one axis: the two pixels it lies between and how much of the second; `None` outside the image.
type Sample = Option<(usize, usize, f64)>;

/// The bins of one region along one axis.
struct Axis {
    start: f64,
    bin_size: f64,
    sample_count: usize,
    extent: usize,
}

impl Axis {
    fn new(op: &RoiAlign, start: f64, end: f64, bins: usize, extent: usize) -> Result<Axis, EvalError> {
        let shift = if op.half_pixel { 0.5 } else { 0.0 };
        let (start, end) = (start * op.spatial_scale - shift, end * op.spatial_scale - shift);
        // Without half_pixel a region is at least one pixel wide.
        let size = if op.half_pixel { end - start } else { (end - start).max(1.0) };
        let bin_size = size / bins as f64;
        let sample_count = if op.sampling_ratio > 0 { op.sampling_ratio } else { bin_size.ceil().max(0.0) as usize };
        if sample_count > BIN_SAMPLES_MAX {
            return Err(EvalError::value(ROI_ALIGN, format!("a region asks for {sample_count} samples a bin")));
        }
        Ok(Axis { start, bin_size, sample_count, extent })
    }

    fn samples(&self, bin: usize) -> Vec<Sample> {
        let step = self.bin_size / self.sample_count as f64;
        let first = self.start + bin as f64 * self.bin_size;
        (0..self.sample_count).map(|at| self.sample(first + (at as f64 + 0.5) * step)).collect()
    }

    fn sample(&self, at: f64) -> Sample {
        let last = self.extent.checked_sub(1)?;
        if !(-1.0..=self.extent as f64).contains(&at) {
            return None;
        }
        let at = at.max(0.0);
        let low = at as usize;
        if low >= last { Some((last, last, 0.0)) } else { Some((low, low + 1, at - low as f64)) }
    }
}

fn weighted_neighbours(plane: &[f64], width: usize, row: &Sample, column: &Sample) -> [f64; 4] {
    let (Some((top, bottom, down)), Some((left, right, across))) = (*row, *column) else {
        return [0.0; 4];
    };
    let at = |row: usize, column: usize| plane[row * width + column];
    [
        (1.0 - down) * (1.0 - across) * at(top, left),
        (1.0 - down) * across * at(top, right),
        down * (1.0 - across) * at(bottom, left),
        down * across * at(bottom, right),
    ]
}
