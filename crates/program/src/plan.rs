//! Buffer planning: each buffer lives from one step to another; buffers that live at the same time get disjoint bytes of
//! one arena. Largest buffers first, each at the lowest gap that holds it; ties by position, so the plan repeats.
//!
//! Threads that share the steps of a run want one thing more. A line of memory that another core wrote last comes from that
//! core's cache when it is written, which takes some 25 ns a line where the cores have no cache in common. Successive
//! steps of one shape cut their results alike, so a buffer that takes the very place of an earlier one of its size is written by the
//! threads that wrote there before. `Reuse::Steady` plans such places first.

/// Alignment of every buffer.
pub const ALIGN_BYTES: u64 = 64;

/// A buffer and the steps between which its bytes are needed, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Size of the buffer.
    pub bytes: u64,
    /// Step that writes it.
    pub first: usize,
    /// Last step that reads it.
    pub last: usize,
}

/// Offsets of buffers in an arena.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Offset of each buffer, in the order given.
    pub offsets: Vec<u64>,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Bytes live at the worst step: a lower bound of any arena.
    pub live_bytes_max: u64,
}

/// Which bytes a buffer may take over from others whose lives have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// Any: the smallest arena.
    #[default]
    Tight,
    /// Where it can, those of one buffer of its own size that ended lately.
    Steady,
}

/// How many steps a place waits for the next buffer of its size before it is given up: about the length of a block of layers.
const STEADY_GAP: usize = 12;

/// Places every buffer.
pub fn plan_buffers(lifetimes: &[Lifetime], reuse: Reuse) -> Plan {
    match reuse {
        Reuse::Tight => plan_tightly(lifetimes),
        Reuse::Steady => {
            let (slots, slot_of) = steady_slots(lifetimes);
            let plan = plan_tightly(&slots);
            let offsets = slot_of.iter().map(|&slot| plan.offsets[slot]).collect();
            Plan { offsets, live_bytes_max: live_bytes_max(lifetimes), ..plan }
        }
    }
}

/// Gathers buffers of one size that follow each other, as one that lives from the first to the last of them; gives these
/// and which of them each buffer belongs to.
fn steady_slots(lifetimes: &[Lifetime]) -> (Vec<Lifetime>, Vec<usize>) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&buffer| (lifetimes[buffer].first, buffer));
    let mut slots: Vec<Lifetime> = Vec::new();
    let mut slot_of = vec![0; lifetimes.len()];
    for buffer in order {
        let Lifetime { bytes, first, last } = lifetimes[buffer];
        let is_free = |slot: &Lifetime| slot.bytes == bytes && slot.last < first && first - slot.last <= STEADY_GAP;
        let latest = (0..slots.len()).filter(|&slot| is_free(&slots[slot])).max_by_key(|&slot| slots[slot].last);
        let slot = latest.unwrap_or_else(|| {
            slots.push(Lifetime { bytes, first, last });
            slots.len() - 1
        });
        slots[slot].last = last;
        slot_of[buffer] = slot;
    }
    (slots, slot_of)
}

fn plan_tightly(lifetimes: &[Lifetime]) -> Plan {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&buffer| (std::cmp::Reverse(lifetimes[buffer].bytes), lifetimes[buffer].first, buffer));
    let mut offsets = vec![0; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut arena_bytes = 0;
    for buffer in order {
        let lifetime = lifetimes[buffer];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| lifetimes[other].first <= lifetime.last && lifetime.first <= lifetimes[other].last)
            .map(|&other| (offsets[other], offsets[other] + aligned(lifetimes[other].bytes)))
            .collect();
        taken.sort_unstable();
        let offset = lowest_gap(&taken, aligned(lifetime.bytes));
        offsets[buffer] = offset;
        arena_bytes = arena_bytes.max(offset + aligned(lifetime.bytes));
        placed.push(buffer);
    }
    Plan { offsets, arena_bytes, live_bytes_max: live_bytes_max(lifetimes) }
}

/// Lowest offset where `bytes` fit between taken ranges, which are sorted.
fn lowest_gap(taken: &[(u64, u64)], bytes: u64) -> u64 {
    let mut end = 0;
    for &(start, stop) in taken {
        if start >= end && start - end >= bytes {
            return end;
        }
        end = end.max(stop);
    }
    end
}

fn live_bytes_max(lifetimes: &[Lifetime]) -> u64 {
    let steps = lifetimes.iter().map(|lifetime| lifetime.last + 1).max().unwrap_or(0);
    let mut change = vec![0i64; steps + 1];
    for lifetime in lifetimes {
        change[lifetime.first] += aligned(lifetime.bytes) as i64;
        change[lifetime.last + 1] -= aligned(lifetime.bytes) as i64;
    }
    let (mut live, mut most) = (0, 0);
    for step in change {
        live += step;
        most = most.max(live);
    }
    most as u64
}

fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(ALIGN_BYTES) * ALIGN_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetime(bytes: u64, first: usize, last: usize) -> Lifetime {
        Lifetime { bytes, first, last }
    }

    #[test]
    fn buffers_that_never_live_together_share_bytes() {
        let plan = plan_buffers(&[lifetime(100, 0, 1), lifetime(100, 2, 3)], Reuse::Tight);
        assert_eq!(plan, Plan { offsets: vec![0, 0], arena_bytes: 128, live_bytes_max: 128 });
    }

    #[test]
    fn buffers_that_meet_in_one_step_are_disjoint() {
        let plan = plan_buffers(&[lifetime(64, 0, 1), lifetime(64, 1, 2), lifetime(64, 2, 3)], Reuse::Tight);
        assert_eq!(plan.arena_bytes, 128);
        assert_ne!(plan.offsets[0], plan.offsets[1]);
        assert_ne!(plan.offsets[1], plan.offsets[2]);
    }

    #[test]
    fn no_two_live_buffers_overlap_in_random_problems() {
        let mut seed = 1u64;
        let mut next = |limit: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % limit
        };
        for round in 0..400 {
            let reuse = if round % 2 == 0 { Reuse::Tight } else { Reuse::Steady };
            let lifetimes: Vec<Lifetime> = (0..30)
                .map(|_| {
                    let first = next(20) as usize;
                    lifetime(next(if reuse == Reuse::Tight { 1000 } else { 4 }), first, first + next(5) as usize)
                })
                .collect();
            let plan = plan_buffers(&lifetimes, reuse);
            for a in 0..lifetimes.len() {
                for b in 0..a {
                    let meet = lifetimes[a].first <= lifetimes[b].last && lifetimes[b].first <= lifetimes[a].last;
                    let apart = plan.offsets[a] + lifetimes[a].bytes <= plan.offsets[b]
                        || plan.offsets[b] + lifetimes[b].bytes <= plan.offsets[a];
                    assert!(!meet || apart, "{a} and {b}");
                }
            }
            assert!(plan.arena_bytes >= plan.live_bytes_max);
        }
    }

    #[test]
    fn no_buffers_need_no_arena() {
        assert_eq!(plan_buffers(&[], Reuse::Tight), Plan::default());
        assert_eq!(plan_buffers(&[], Reuse::Steady), Plan::default());
    }

    #[test]
    fn a_steady_plan_puts_buffers_of_one_size_in_the_same_places() {
        // Two chains of layers, each of its own size, whose steps read one buffer and write another.
        let chain = |bytes: u64, start: usize| (start..start + 6).map(move |step| lifetime(bytes, step, step + 1));
        let lifetimes: Vec<Lifetime> = chain(640, 0).chain(chain(256, 6)).collect();
        let plan = plan_buffers(&lifetimes, Reuse::Steady);
        for step in 2..6 {
            assert_eq!(plan.offsets[step], plan.offsets[step - 2]);
            assert_eq!(plan.offsets[6 + step], plan.offsets[6 + step - 2]);
        }
        assert!(plan.arena_bytes <= 2 * 640 + 256, "{}", plan.arena_bytes);
    }

    #[test]
    fn a_place_is_given_up_when_its_size_is_not_needed_for_long() {
        let lifetimes = [lifetime(640, 0, 1), lifetime(512, 2, 30), lifetime(640, 31, 32)];
        assert_eq!(plan_buffers(&lifetimes, Reuse::Steady).arena_bytes, 640);
    }
}
