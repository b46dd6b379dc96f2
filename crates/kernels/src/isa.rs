//! The instruction sets the kernels are written for, and the handle every kernel takes.
//!
//! A Program is compiled for one `Isa`. `Exec::new` is the only way to hand an `Isa` to a kernel, and it refuses one
//! that this machine lacks; every `#[target_feature]` function of the crate relies on that check.

use crate::pool::ThreadPool;

/// An instruction set, ordered from the least to the most demanding; each includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// What the compiler may use for any machine of this architecture.
    Portable,
    /// AVX2 and FMA: 256-bit vectors.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: 512-bit vectors.
    Avx512,
    /// AVX-512 as above with VNNI, the 8-bit dot products.
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set, in order.
    pub const ALL: [Isa; 4] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni];

    /// The most demanding instruction set of this machine.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.is_supported()).unwrap_or(Isa::Portable)
    }

    /// Whether this machine has every instruction of the set.
    #[cfg(target_arch = "x86_64")]
    pub fn is_supported(self) -> bool {
        let has_avx2 = || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let has_avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match self {
            Isa::Portable => true,
            Isa::Avx2 => has_avx2(),
            Isa::Avx512 => has_avx2() && has_avx512(),
            Isa::Avx512Vnni => has_avx2() && has_avx512() && is_x86_feature_detected!("avx512vnni"),
        }
    }

    /// Whether this machine has every instruction of the set.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_supported(self) -> bool {
        self == Isa::Portable
    }

    /// The name used in Program files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
        }
    }

    /// The instruction set of that name.
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

/// What every kernel takes: the instruction set the Program was compiled for and the threads to use.
#[derive(Clone, Copy)]
pub struct Exec<'a> {
    isa: Isa,
    pool: &'a ThreadPool,
}

impl<'a> Exec<'a> {
    /// A handle for this instruction set, or `None` when this machine does not have it.
    pub fn new(isa: Isa, pool: &'a ThreadPool) -> Option<Exec<'a>> {
        isa.is_supported().then_some(Exec { isa, pool })
    }

    /// The instruction set; this machine has it.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The threads to use.
    pub fn pool(&self) -> &'a ThreadPool {
        self.pool
    }

    /// How many threads the pool has, the caller included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("mmx"), None);
    }

    #[test]
    fn a_supported_set_implies_the_ones_before_it() {
        let detected = Isa::detect();
        for isa in Isa::ALL {
            assert_eq!(isa.is_supported(), isa <= detected);
        }
    }
}
