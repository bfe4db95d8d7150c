//! A provider of models, as far as the proxy sees it: it takes its time, may be sick, and says what it bills.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tollgate::Clock;

pub(crate) struct Upstream {
    clock: Clock,
    pub(crate) takes: Duration,
    /// The tokens of each answer.
    pub(crate) bills: AtomicU64,
    pub(crate) is_sick: AtomicBool,
    pub(crate) calls: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct Sick;

impl Upstream {
    pub(crate) fn new(clock: &Clock, takes: Duration, bills: u64) -> Self {
        Self {
            clock: clock.clone(),
            takes,
            bills: AtomicU64::new(bills),
            is_sick: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        }
    }

    /// The tokens that an answer has taken.
    pub(crate) async fn complete(&self, _prompt: &str) -> Result<u64, Sick> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.clock.sleep(self.takes).await;
        match self.is_sick.load(Ordering::Relaxed) {
            true => Err(Sick),
            false => Ok(self.bills.load(Ordering::Relaxed)),
        }
    }
}
