//! Keys and values of pages in the memory of a device, which a decoder's steps read and write there by the numbers of the
//! pages. The host knows which pages are whose, and nothing of what is in them. Layers with a window keep all tokens of a
//! page, so nothing wraps.

use std::sync::Arc;

use precast_session::{Device, DeviceMemory, DevicePlace, SessionError};
use precast_tensor::DType;

use crate::kv_cache::{Half, LayerLayout};
use crate::plan::{StepPlan, StepShape};
use crate::resident::{ALIGNMENT, ResidentDecoder, ResidentOutputs, StepPlaces, UnreadScores, full_plan};
use crate::text_model::{Input, InputRole, StepError, TextModel};

use super::page_pool::PageId;

/// What stands where a row has no page.
const NO_PAGE: i64 = -1;

/// Sizes of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageSizes {
    /// Pages.
    pub(super) pages: usize,
    /// Tokens of each.
    pub(super) page_tokens: usize,
}

impl PageSizes {
    /// Sizes of a layer's keys or values in all pages.
    fn shape(self, layout: &LayerLayout, half: Half) -> [usize; 4] {
        let size = match half {
            Half::Keys => layout.key_size,
            Half::Values => layout.value_size,
        };
        [self.pages, layout.heads, self.page_tokens, size]
    }
}

/// Keys and values of pages: of each layer the keys of all pages, then their values.
pub(super) struct DevicePages {
    sizes: PageSizes,
    memory: Arc<dyn DeviceMemory>,
    /// Where each layer's keys and values begin.
    starts: Vec<[usize; 2]>,
    unread: UnreadScores,
}

impl DevicePages {
    /// Pages that hold nothing.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        layouts: &[LayerLayout],
        sizes: PageSizes,
    ) -> Result<DevicePages, StepError> {
        let mut bytes = 0usize;
        let mut starts = Vec::with_capacity(layouts.len());
        for layout in layouts {
            starts.push([Half::Keys, Half::Values].map(|half| {
                let start = bytes;
                let elements = sizes.shape(layout, half).into_iter().fold(1, usize::saturating_mul);
                let own = elements.saturating_mul(layout.dtype.size_bytes());
                bytes = bytes.saturating_add(own.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX));
                start
            }));
        }
        let memory = device.allocate(bytes.max(ALIGNMENT)).map_err(SessionError::from)?;
        Ok(DevicePages { sizes, memory, starts, unread: UnreadScores::new(device) })
    }

    /// Their sizes.
    pub(super) fn sizes(&self) -> PageSizes {
        self.sizes
    }

    /// Bytes of all pages.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn place(&self, layer: usize, half: Half) -> DevicePlace<'_> {
        DevicePlace { memory: &*self.memory, start: self.starts[layer][half as usize] }
    }
}

impl TextModel {
    /// Runs a step on pages of the device: `tokens[i]` are the valid new tokens of row i of the plan and `tables[i]` its pages, with
    /// room for them. The plan's capacity is what the pages of a row have room for.
    pub(super) fn run_paged(
        &self,
        decoder: &ResidentDecoder,
        plan: &StepPlan,
        tokens: &[&[u32]],
        tables: &[&[PageId]],
        pages: &mut DevicePages,
        reads_scores: bool,
    ) -> Result<ResidentOutputs, StepError> {
        let decoder = decoder.for_plan(plan);
        let scores = match reads_scores {
            true => None,
            false => Some(pages.unread.room(self.score_bytes(decoder, plan))?),
        };
        let inputs = self.paged_inputs(&decoder.inputs, plan, tokens, tables, pages.sizes);
        let kept = |layer, half| pages.place(layer, half);
        self.run_in_place(decoder, plan, &inputs, &StepPlaces { kept: &kept, scores: scores.as_deref() })
    }

    /// Compiles or loads the Program of a step of this shape on such pages, so that no step waits for it.
    pub(super) fn prepare_paged(
        &self,
        sizes: PageSizes,
        shape: StepShape,
        wants_scores: bool,
    ) -> Result<(), StepError> {
        let plan = full_plan(shape, wants_scores);
        let Some(decoder) = self.paged_for(false) else { return Ok(()) };
        let (tokens, decoder) = (vec![0; shape.length], decoder.for_plan(&plan));
        let (tokens, tables) = (vec![&tokens[..]; shape.rows], vec![&[][..]; shape.rows]);
        decoder.prepare(&self.paged_inputs(&decoder.inputs, &plan, &tokens, &tables, sizes))
    }

    fn paged_inputs(
        &self,
        roles: &[(InputRole, DType)],
        plan: &StepPlan,
        tokens: &[&[u32]],
        tables: &[&[PageId]],
        sizes: PageSizes,
    ) -> Vec<Input> {
        let input = |&(role, dtype): &(InputRole, DType)| match role {
            InputRole::Past(layer, half) => {
                Input::Cache { dtype, layer, half, shape: sizes.shape(&self.layers()[layer], half) }
            }
            InputRole::Pages => page_numbers(dtype, plan, tables, sizes.page_tokens),
            role => Input::numbers(role, dtype, plan, tokens),
        };
        roles.iter().map(input).collect()
    }
}

/// The pages of the Program's rows: of each those that its cached and new tokens lie in. Filler rows repeat the first row, as in
/// all they read; they have no new tokens, so nothing of theirs is written.
fn page_numbers(dtype: DType, plan: &StepPlan, tables: &[&[PageId]], page_tokens: usize) -> Input {
    let width = plan.shape.capacity / page_tokens;
    let by_position = plan.rows_by_position();
    let numbers = by_position.iter().flat_map(|row| {
        let row = row.unwrap_or(0);
        let needed = (plan.rows[row].cached + plan.rows[row].valid).div_ceil(page_tokens);
        let own = tables[row].iter().take(needed).map(|page| i64::from(page.0));
        own.chain(std::iter::repeat(NO_PAGE)).take(width)
    });
    Input::integers(dtype, vec![plan.shape.rows, width], numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Phase, PlannedRow, Scores};

    #[test]
    fn filler_repeats_the_first_row_and_pages_of_later_tokens_are_none() {
        let row = |slot, cached, valid| PlannedRow { slot, cached, valid, is_last: true };
        let plan = StepPlan {
            phase: Phase::Decode,
            shape: StepShape { rows: 3, length: 1, capacity: 6 },
            rows: vec![row(0, 2, 1), row(1, 1, 1)],
            scores: Scores::Last,
            is_long: false,
        };
        let tables: [&[PageId]; 2] = [&[PageId(4), PageId(0), PageId(9)], &[PageId(7), PageId(8)]];
        let input = page_numbers(DType::I32, &plan, &tables, 2);
        assert_eq!(input.form(), (DType::I32, &[3, 3][..]));
        let numbers: Vec<i32> = input.bytes().as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect();
        assert_eq!(numbers, [4, 0, -1, 7, -1, -1, 4, 0, -1]);
    }
}
