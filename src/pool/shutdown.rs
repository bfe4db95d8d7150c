//! How a pool ended.

use super::core::Core;
use super::entry::Unstarted;
use std::sync::Arc;

/// What was left when a pool ended.
#[derive(Debug)]
#[must_use = "tasks that are dropped with the report will never run"]
#[non_exhaustive]
pub struct Report<'j> {
    /// The tasks that have not started, in the order in which they would have. Run them, or drop them.
    pub unstarted: Vec<Unstarted<'j>>,
    /// How many tasks were running, and run on.
    pub running: usize,
}

impl<'j> Report<'j> {
    pub(super) fn new(core: &Arc<Core<'j>>) -> Self {
        let unstarted = core.stop().into_iter().map(|entry| Unstarted::new(entry, false));
        let unstarted = unstarted.collect();
        Self {
            unstarted,
            running: core.stats().unfinished,
        }
    }

    /// True when every task that was let in has ended.
    pub fn is_clean(&self) -> bool {
        self.unstarted.is_empty() && self.running == 0
    }
}
