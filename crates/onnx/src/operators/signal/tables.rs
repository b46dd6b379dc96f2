//! Tables of numbers for transforms, windows and mel filters, all computed in f64.

use std::f64::consts::PI;

/// A discrete Fourier transform as a table.
pub(super) struct Transform {
    /// Numbers that are transformed; shorter inputs are followed by zeros.
    pub length: usize,
    /// 1 for real inputs, 2 for complex ones.
    pub components: usize,
    is_inverse: bool,
    is_onesided: bool,
}

impl Transform {
    pub fn new(length: usize, components: usize, is_inverse: bool, is_onesided: bool) -> Transform {
        Transform { length, components, is_inverse, is_onesided }
    }

    /// Input numbers that matter: the inverse of a one-sided spectrum takes only its half.
    pub fn inputs(&self) -> usize {
        if self.is_inverse && self.is_onesided { self.length / 2 + 1 } else { self.length }
    }

    /// Output numbers.
    pub fn outputs(&self) -> usize {
        if self.is_onesided && !self.is_inverse { self.length / 2 + 1 } else { self.length }
    }

    /// Complex numbers, except that a one-sided spectrum comes from a real signal.
    pub fn output_components(&self) -> usize {
        if self.is_onesided && self.is_inverse { 1 } else { 2 }
    }

    /// Row by row, one row a component of each of the first `used` inputs: its share in every component of every output.
    pub fn table(&self, used: usize) -> Vec<f64> {
        let sign = if self.is_inverse { 1.0 } else { -1.0 };
        let mut table = Vec::with_capacity(used * self.components * self.outputs() * self.output_components());
        for input in 0..used {
            let weight = self.weight(input);
            for component in 0..self.components {
                for output in 0..self.outputs() {
                    // The angle is reduced before it is rounded: products of large indices would lose digits.
                    let turn = (input as u128 * output as u128 % self.length as u128) as f64 / self.length as f64;
                    let (sine, cosine) = libm::sincos(2.0 * PI * turn);
                    let (real, imaginary) = if component == 0 { (cosine, sign * sine) } else { (-sign * sine, cosine) };
                    table.push(weight * real);
                    if self.output_components() == 2 {
                        table.push(weight * imaginary);
                    }
                }
            }
        }
        table
    }

    fn weight(&self, input: usize) -> f64 {
        if !self.is_inverse {
            return 1.0;
        }
        // A one-sided spectrum lacks the mirror image of all but its first and, for even lengths, its last number.
        let is_mirrored = self.is_onesided && input != 0 && 2 * input != self.length;
        if is_mirrored { 2.0 / self.length as f64 } else { 1.0 / self.length as f64 }
    }
}

/// Windows of one, two or three cosines.
#[derive(Clone, Copy)]
pub(super) enum Window {
    Hann,
    Hamming,
    Blackman,
}

impl Window {
    /// Elements of a window; a periodic one is a symmetric one of one more element without its last.
    pub fn elements(self, size: usize, is_periodic: bool) -> Vec<f64> {
        // ONNX gives Hamming as fractions, not as the usual 0.54 and 0.46.
        let [constant, once, twice] = match self {
            Window::Hann => [0.5, -0.5, 0.0],
            Window::Hamming => [25.0 / 46.0, -21.0 / 46.0, 0.0],
            Window::Blackman => [0.42, -0.5, 0.08],
        };
        let period = if is_periodic { size } else { size.saturating_sub(1).max(1) };
        (0..size)
            .map(|position| {
                let angle = 2.0 * PI * position as f64 / period as f64;
                constant + once * libm::cos(angle) + twice * libm::cos(2.0 * angle)
            })
            .collect()
    }
}

/// Triangular filters at equal distances on the mel scale, as [length / 2 + 1, bands].
pub(super) fn mel_weights(bands: usize, length: usize, rate: usize, low_hertz: f64, high_hertz: f64) -> Vec<f64> {
    let bins = length / 2 + 1;
    let mel = |hertz: f64| 2595.0 * libm::log10(1.0 + hertz / 700.0);
    let hertz = |mel: f64| 700.0 * (libm::pow(10.0, mel / 2595.0) - 1.0);
    // ONNX divides the range by the number of edges, not by the number of gaps between them.
    let step = (mel(high_hertz) - mel(low_hertz)) / (bands + 2) as f64;
    let edges: Vec<usize> = (0..bands + 2)
        .map(|edge| {
            let frequency = hertz(mel(low_hertz) + edge as f64 * step);
            ((length + 1) as f64 * frequency / rate as f64).floor().max(0.0) as usize
        })
        .collect();
    let mut weights = vec![0.0; bins * bands];
    for band in 0..bands {
        let (left, centre, right) = (edges[band], edges[band + 1], edges[band + 2]);
        let mut set = |bin: usize, weight: f64| weights[bin * bands + band] = weight;
        // A band may reach beyond the last bin, as far as its frequencies are wrong.
        if left == centre && centre < bins {
            set(centre, 1.0);
        }
        for bin in left..centre.saturating_add(1).min(bins) {
            if left != centre {
                set(bin, (bin - left) as f64 / (centre - left) as f64);
            }
        }
        for bin in centre..right.min(bins) {
            set(bin, (right - bin) as f64 / (right - centre) as f64);
        }
    }
    weights
}
