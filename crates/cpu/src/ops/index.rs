//! index
use precast_ir::op::*;
use crate::step::{Lowered, StepNode};
pub fn lower_gather(_step: &StepNode, _op: &Gather) -> Result<Option<Lowered>, String> { Ok(None) }
pub fn lower_gather_elements(_step: &StepNode, _op: &GatherElements) -> Result<Option<Lowered>, String> { Ok(None) }
pub fn lower_gather_nd(_step: &StepNode, _op: &GatherNd) -> Result<Option<Lowered>, String> { Ok(None) }
pub fn lower_scatter_elements(_step: &StepNode, _op: &ScatterElements) -> Result<Option<Lowered>, String> { Ok(None) }
pub fn lower_scatter_nd(_step: &StepNode, _op: &ScatterNd) -> Result<Option<Lowered>, String> { Ok(None) }
