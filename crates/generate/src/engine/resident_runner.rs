//! Steps of an engine on a decoder whose device keeps the pages. A step brings there the new tokens of its rows, how many of each
//! are cached and which pages they have, and takes back scores, or only which token has the largest. Nothing is copied when a
//! row is let in, goes on, forks or is rewound: what differs is a table of numbers.

use crate::adapter::Adapter;
use crate::ladder::Ladders;
use crate::plan::StepPlan;
use crate::resident::ResidentOutputs;
use crate::step_buffers::Scores;
use crate::text_model::{StepError, TextModel};

use super::device_pages::{DevicePages, PageSizes};
use super::draft_model::DraftModel;
use super::metrics::KvPlace;
use super::options::EngineLimits;
use super::page_pool::PageId;
use super::paged_runner::{fault, groups, model_of, plan_of, wanted_of};
use super::preparer::Preparer;
use super::row::RowId;
use super::runner::{Found, StepFault, StepRow, StepRunner};

/// Steps of an engine on a decoder that keeps pages.
pub struct ResidentRunner {
    model: TextModel,
    /// Capacities are of so many pages as the tables of rows have room for.
    ladders: Ladders,
    rows_max: usize,
    pages: DevicePages,
    draft: Option<DraftModel>,
    preparer: Option<Preparer>,
}

impl ResidentRunner {
    /// A runner for steps of these limits, with memory for all pages. Says why where that cannot be.
    pub fn new(model: &TextModel, limits: &EngineLimits) -> Result<ResidentRunner, String> {
        let sizes = PageSizes { pages: limits.pages, page_tokens: limits.page_tokens };
        ResidentRunner::on_pages(model, sizes, limits.rows_max)
    }

    fn on_pages(model: &TextModel, sizes: PageSizes, rows_max: usize) -> Result<ResidentRunner, String> {
        let device = model.page_device().ok_or("the decoder's device keeps no pages")?;
        let refused = |error: StepError| {
            let bytes = (sizes.pages * sizes.page_tokens).saturating_mul(model.kv_bytes_per_token());
            format!("the device does not give the {bytes} bytes of all pages: {error}")
        };
        let pages = DevicePages::new(device, model.layers(), sizes).map_err(refused)?;
        let ladders = model.ladders().on_pages(sizes.page_tokens);
        let rows_max = rows_max.min(ladders.rows.largest());
        let draft = model.draft().map(|draft| DraftModel::new(draft, rows_max));
        Ok(ResidentRunner { model: model.clone(), ladders, rows_max, pages, draft, preparer: None })
    }

    /// Has Programs compiled ahead of need, on a thread of its own.
    pub fn prepare_ahead(&mut self) {
        let (model, sizes) = (self.model.clone(), self.pages.sizes());
        let prepare = move |shape, wants_scores| model.prepare_paged(sizes, shape, wants_scores);
        self.preparer = Preparer::begin(&self.ladders, self.rows_max, prepare);
    }

    /// Runs rows in one Program: all have one new token, or few and scores behind each, or there is one.
    fn run_group(&mut self, rows: &[&StepRow<'_>]) -> Result<Vec<Vec<Found>>, StepFault> {
        let longest = rows.iter().map(|row| row.cached + row.tokens.len()).max().unwrap_or(0);
        let capacity = self.ladders.capacity.at_least(longest).unwrap_or_else(|| self.ladders.capacity.largest());
        let slots: Vec<usize> = (0..rows.len()).collect();
        let plan = plan_of(rows, &slots, &self.ladders, capacity);
        let found = match rows.iter().all(|row| row.scored == 0 || row.takes_largest) {
            true => self.largest(rows, &plan)?,
            false => None,
        };
        let found = match found {
            Some(found) => found,
            None => self.scores(rows, &plan)?,
        };
        if let Some(preparer) = &mut self.preparer {
            preparer.look_ahead(&plan, &self.ladders);
        }
        Ok(wanted_of(rows, &plan, found.into_iter()))
    }

    /// Runs a step of which only the tokens of the largest scores are wanted; none where one of these scores is no number, which
    /// is judged, and told, with all of them at hand.
    fn largest(&mut self, rows: &[&StepRow<'_>], plan: &StepPlan) -> Result<Option<Vec<Found>>, StepFault> {
        let best = self.run_plan(rows, plan, false)?.best;
        let is_whole = best.iter().all(|(_, score)| score.is_finite());
        Ok(is_whole.then(|| best.into_iter().map(|(id, _)| Found::Largest(id)).collect()))
    }

    /// Runs a step of which scores are wanted. A step may run twice: it writes the same keys and values again.
    fn scores(&mut self, rows: &[&StepRow<'_>], plan: &StepPlan) -> Result<Vec<Found>, StepFault> {
        let logits = self.run_plan(rows, plan, true)?.logits.unwrap_or_default();
        Ok(logits.into_iter().map(|logits| Found::Scores(Scores::from(logits))).collect())
    }

    fn run_plan(
        &mut self,
        rows: &[&StepRow<'_>],
        plan: &StepPlan,
        reads_scores: bool,
    ) -> Result<ResidentOutputs, StepFault> {
        let ResidentRunner { model, pages, .. } = self;
        let model = model_of(model, rows)?;
        let missing = || StepFault::Retryable("the decoder's device keeps no pages of such rows".to_string());
        let decoder = model.paged_for(plan.is_long).ok_or_else(missing)?;
        let tokens: Vec<&[u32]> = rows.iter().map(|row| row.tokens).collect();
        let tables: Vec<&[PageId]> = rows.iter().map(|row| row.pages).collect();
        model.run_paged(decoder, plan, &tokens, &tables, pages, reads_scores).map_err(fault)
    }
}

impl StepRunner for ResidentRunner {
    fn vocabulary(&self) -> usize {
        self.model.vocabulary()
    }

    fn kv_bytes(&self) -> usize {
        self.pages.bytes() + self.draft.as_ref().map_or(0, DraftModel::kv_bytes)
    }

    fn kv_place(&self) -> KvPlace {
        KvPlace::Device
    }

    fn is_divisible(&self) -> bool {
        !self.ladders.is_exact
    }

    fn runs_adapters(&self) -> bool {
        true
    }

    fn run(&mut self, rows: &[StepRow<'_>]) -> Result<Vec<Vec<Found>>, StepFault> {
        let mut found: Vec<Vec<Found>> = vec![Vec::new(); rows.len()];
        let (rows_max, length_max) = (self.ladders.rows.largest(), self.ladders.length.largest());
        // Rows of all lengths run together: each reads the pages that it has.
        for group in groups(rows, rows_max, length_max, |row| (0, row.adapter.map(Adapter::digest))) {
            let members: Vec<&StepRow<'_>> = group.iter().map(|&position| &rows[position]).collect();
            for (&position, own) in group.iter().zip(self.run_group(&members)?) {
                found[position] = own;
            }
        }
        Ok(found)
    }

    fn draft(&mut self) -> Option<&mut DraftModel> {
        self.draft.as_mut()
    }

    fn forget(&mut self, _: RowId) {}

    fn rebuild(&mut self) -> Result<(), StepFault> {
        // A Session whose device has failed runs nothing any more, and its memory holds nothing.
        let model = self.model.reopen().map_err(StepFault::DeviceLost)?;
        let (sizes, prepares) = (self.pages.sizes(), self.preparer.is_some());
        *self = ResidentRunner::on_pages(&model, sizes, self.rows_max).map_err(StepFault::DeviceLost)?;
        if prepares {
            self.prepare_ahead();
        }
        Ok(())
    }
}
