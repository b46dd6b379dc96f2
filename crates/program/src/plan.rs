//! Buffer planning: each buffer lives from one step to another; buffers that live at the same time get disjoint bytes of
//! one arena. Largest buffers first, each at the lowest gap that holds it; ties by position, so the plan repeats.
//!
//! Threads that share the steps of a run want one thing more. A line of memory that another core has read or written since takes
//! some 30 ns to write where the cores have no cache in common. Successive steps cut results of one form alike, so a
//! buffer that takes the place of earlier ones of its form is written by the threads that wrote and read there before. `Reuse::Steady`
//! gives every form memory of its own, as far as that is little more memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

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
    /// How threads share it: buffers of one form that lie at multiples of its bytes are cut alike.
    pub form: Form,
}

/// What the cut of a buffer over threads depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The whole buffer: one of another size is cut elsewhere.
    #[default]
    Whole,
    /// Planes of this many bytes, each of which is cut.
    Planes(u64),
    /// What a step needs while it runs, in parts of one size for each thread.
    Scratch,
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
    /// Those of buffers of its own form, where memory allows.
    Steady,
}

/// How large an arena may become for the sake of steady places, in hundredths of the bytes that are live at the worst step.
const STEADY_HUNDREDTHS: u64 = 115;

/// How many steps a place waits for the next buffer of its size before it is given up: about the length of a block of layers.
const STEADY_GAP: usize = 12;

/// Places every buffer.
pub fn plan_buffers(lifetimes: &[Lifetime], reuse: Reuse) -> Plan {
    match reuse {
        Reuse::Tight => plan_tightly(lifetimes),
        Reuse::Steady => plan_by_form(lifetimes),
    }
}

/// Forms whose bytes are written most often have memory of their own, as far as the arena may grow; the others share.
fn plan_by_form(lifetimes: &[Lifetime]) -> Plan {
    let members = |buffers: &[usize]| buffers.iter().map(|&buffer| lifetimes[buffer]).collect::<Vec<Lifetime>>();
    let live_bytes_max = live_bytes_max(lifetimes);
    let arena_most = live_bytes_max / 100 * STEADY_HUNDREDTHS;
    let mut offsets = vec![0; lifetimes.len()];
    let mut sharing: Vec<usize> = (0..lifetimes.len()).collect();
    let mut own_bytes = 0;
    for (buffers, plan) in planned_forms(lifetimes) {
        let rest: Vec<usize> =
            sharing.iter().copied().filter(|buffer| buffers.binary_search(buffer).is_err()).collect();
        if own_bytes + plan.arena_bytes + self::live_bytes_max(&members(&rest)) > arena_most {
            continue;
        }
        for (&buffer, offset) in buffers.iter().zip(plan.offsets) {
            offsets[buffer] = own_bytes + offset;
        }
        own_bytes += plan.arena_bytes;
        sharing = rest;
    }
    let plan = plan_by_size(&members(&sharing));
    for (&buffer, offset) in sharing.iter().zip(plan.offsets) {
        offsets[buffer] = own_bytes + offset;
    }
    Plan { offsets, arena_bytes: own_bytes + plan.arena_bytes, live_bytes_max }
}

/// The buffers of each form, in order, and where they lie in memory of their own; forms whose bytes are written most often first.
fn planned_forms(lifetimes: &[Lifetime]) -> Vec<(Vec<usize>, Plan)> {
    let mut forms: BTreeMap<(Form, u64), Vec<usize>> = BTreeMap::new();
    for (buffer, lifetime) in lifetimes.iter().enumerate() {
        let size = if lifetime.form == Form::Whole { lifetime.bytes } else { 0 };
        forms.entry((lifetime.form, size)).or_default().push(buffer);
    }
    let plan = |buffers: &[usize]| plan_tightly(&buffers.iter().map(|&buffer| lifetimes[buffer]).collect::<Vec<_>>());
    let mut planned: Vec<(Vec<usize>, Plan)> = forms
        .into_values()
        .map(|buffers| {
            let plan = plan(&buffers);
            (buffers, plan)
        })
        .collect();
    let written_bytes = |buffers: &[usize]| buffers.iter().map(|&buffer| lifetimes[buffer].bytes).sum::<u64>();
    // In hundredths, so that a form that is written a little more often comes first.
    planned.sort_by_key(|(buffers, plan)| Reverse(100 * written_bytes(buffers) / plan.arena_bytes.max(1)));
    planned
}

/// Buffers of one size that follow each other have one place; others share bytes.
fn plan_by_size(lifetimes: &[Lifetime]) -> Plan {
    let (slots, slot_of) = steady_slots(lifetimes);
    let plan = plan_tightly(&slots);
    let offsets = slot_of.iter().map(|&slot| plan.offsets[slot]).collect();
    Plan { offsets, live_bytes_max: live_bytes_max(lifetimes), ..plan }
}

/// Gathers buffers of one size that follow each other, as one that lives from the first to the last of them; gives these
/// and which of them each buffer belongs to.
fn steady_slots(lifetimes: &[Lifetime]) -> (Vec<Lifetime>, Vec<usize>) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&buffer| (lifetimes[buffer].first, buffer));
    let mut slots: Vec<Lifetime> = Vec::new();
    let mut slot_of = vec![0; lifetimes.len()];
    for buffer in order {
        let Lifetime { bytes, first, last, form } = lifetimes[buffer];
        let is_free = |slot: &Lifetime| slot.bytes == bytes && slot.last < first && first - slot.last <= STEADY_GAP;
        let latest = (0..slots.len()).filter(|&slot| is_free(&slots[slot])).max_by_key(|&slot| slots[slot].last);
        let slot = latest.unwrap_or_else(|| {
            slots.push(Lifetime { bytes, first, last, form });
            slots.len() - 1
        });
        slots[slot].last = last;
        slot_of[buffer] = slot;
    }
    (slots, slot_of)
}

fn plan_tightly(lifetimes: &[Lifetime]) -> Plan {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&buffer| (Reverse(lifetimes[buffer].bytes), lifetimes[buffer].first, buffer));
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
        Lifetime { bytes, first, last, form: Form::Whole }
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
        assert!(plan.arena_bytes <= 2 * 640 + 2 * 256, "{}", plan.arena_bytes);
    }

    #[test]
    fn a_place_is_given_up_when_its_size_is_not_needed_for_long() {
        let lifetimes = [lifetime(640, 0, 1), lifetime(512, 2, 30), lifetime(640, 31, 32)];
        assert_eq!(plan_buffers(&lifetimes, Reuse::Steady).arena_bytes, 640);
    }

    #[test]
    fn forms_have_memory_of_their_own_and_planes_lie_at_multiples_of_their_size() {
        let planes = |count: u64, first: usize, last: usize| Lifetime {
            form: Form::Planes(640),
            ..lifetime(count * 640, first, last)
        };
        let lifetimes = [
            planes(4, 0, 1),
            planes(1, 1, 2),
            lifetime(128, 2, 3),
            planes(3, 2, 3),
            planes(2, 3, 4),
            lifetime(128, 4, 5),
        ];
        let plan = plan_buffers(&lifetimes, Reuse::Steady);
        let of_planes = [0, 1, 3, 4].map(|buffer| plan.offsets[buffer]);
        assert!(of_planes.iter().all(|offset| (offset - of_planes.iter().min().unwrap_or(&0)) % 640 == 0), "{plan:?}");
        assert_eq!(plan.offsets[2], plan.offsets[5]);
        let end = |buffer: usize| plan.offsets[buffer] + lifetimes[buffer].bytes;
        assert!([0, 1, 3, 4].iter().all(|&buffer| end(buffer) <= plan.offsets[2] || end(2) <= plan.offsets[buffer]));
    }
}
