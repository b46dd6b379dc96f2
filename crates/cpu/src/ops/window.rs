//! window
use precast_ir::op::*;
use crate::step::{Lowered, StepNode};
pub fn lower_pool(_step: &StepNode, _op: &Pool) -> Result<Option<Lowered>, String> { Ok(None) }
pub fn lower_resize(_step: &StepNode, _op: &Resize) -> Result<Option<Lowered>, String> { Ok(None) }
