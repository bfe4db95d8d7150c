//! What the lock of a fan-out guards. Plain data.
//!
//! - The source is in the hands of one runner at a time: of a *looker*, who takes it out, asks it for an item, and puts
//!   it back.
//! - A runner that has got an item calls the next to look, when nobody looks any more: wakes one that idles, or starts
//!   one. So as many run as there is work for, and a burst of short futures is run by few.
//! - A runner idles when the source is in other hands, or there is no room for another result. Hence the invariant:
//!   somebody idles, the source has not ended and there is room => somebody looks.

use super::limit_watch::LimitWatch;
use super::progress::Progress;
use crate::pool::{AbortHandle, TaskError};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;

/// Where items come from, and what makes futures of them.
pub(super) struct Source<S, F> {
    pub(super) stream: Pin<Box<S>>,
    pub(super) f: F,
}

/// What came of an item.
pub(super) type Outcome<T> = Result<T, TaskError>;

pub(super) struct State<S, F, T> {
    /// None while it is in a runner's hands, and once it has ended.
    pub(super) source: Option<Box<Source<S, F>>>,
    pub(super) ended: bool,
    /// The item whose result has ended it: in order, the first of those.
    pub(super) failed: Option<usize>,
    /// The runtime has dropped a runner: what is here is all there will be.
    pub(super) died: bool,
    /// Nobody wants results any more.
    pub(super) stopped: bool,
    /// Runners that look for an item, or have been called to.
    pub(super) looking: usize,
    pub(super) idle: Vec<(Arc<AtomicBool>, Waker)>,
    /// All that there are, or are about to be, by number.
    pub(super) runners: Vec<Runner>,
    /// Results, in order from `first` on, with gaps where those are still to come; as they came, without gaps, else.
    pub(super) results: VecDeque<Option<Outcome<T>>>,
    pub(super) first: usize,
    /// Items that were taken whose results have not been given out.
    pub(super) outstanding: usize,
    pub(super) consumer: Option<Waker>,
    /// There while nobody can be called to look, for the limit.
    pub(super) limit_watch: LimitWatch,
    pub(super) progress: Progress,
}

/// What is known of a runner.
#[derive(Default)]
pub(super) struct Runner {
    /// None until it has been started, and once it was ended.
    pub(super) abort: Option<AbortHandle>,
    /// The item that it runs.
    pub(super) item: Option<usize>,
}

/// Who is called to look.
pub(super) enum Help {
    Nobody,
    Wake(Waker),
    /// The runner of this number.
    Start(usize),
}

impl<S, F, T> State<S, F, T> {
    pub(super) fn new(source: Source<S, F>, total: Option<usize>) -> Self {
        Self {
            source: Some(Box::new(source)),
            ended: false,
            failed: None,
            died: false,
            stopped: false,
            looking: 0,
            idle: Vec::new(),
            runners: Vec::new(),
            results: VecDeque::new(),
            first: 0,
            outstanding: 0,
            consumer: None,
            limit_watch: LimitWatch::default(),
            progress: Progress {
                total,
                ..Progress::default()
            },
        }
    }

    /// Calls somebody to look, if nobody does and there is something to look for.
    pub(super) fn call_for_help(&mut self, limit: usize, window: usize) -> Help {
        if self.looking > 0 || self.ended || self.outstanding >= window {
            return Help::Nobody;
        }
        if let Some((called, waker)) = self.idle.pop() {
            // Relaxed: written and read under the lock.
            called.store(true, std::sync::atomic::Ordering::Relaxed);
            self.looking += 1;
            return Help::Wake(waker);
        }
        if self.runners.len() < limit {
            self.runners.push(Runner::default());
            self.looking += 1;
            return Help::Start(self.runners.len() - 1);
        }
        Help::Nobody
    }

    /// Whether the failure of this item ends it: nothing has, or, in order, one behind it.
    pub(super) fn ends_with(&self, index: usize, ordered: bool) -> bool {
        let first = self.failed.is_none_or(|failed| ordered && index < failed);
        first && !(self.stopped || self.died || (self.ended && seeded!("fan_out_overlooks_a_late_failure")))
    }

    /// True of a runner that has nothing to do once it has failed: in order, one that is not in front of the failure.
    pub(super) fn is_in_vain(&self, runner: usize, ordered: bool) -> bool {
        let item = self.runners[runner].item;
        self.failed
            .is_some_and(|failed| !ordered || item.is_none_or(|item| item > failed))
    }

    /// Those to be ended, after the lock, when it has failed.
    pub(super) fn end_in_vain(&mut self, ordered: bool) -> Vec<AbortHandle> {
        (0..self.runners.len())
            .filter_map(|runner| {
                let ends = self.is_in_vain(runner, ordered) && !seeded!("fan_out_runs_in_vain");
                ends.then(|| self.runners[runner].abort.take())?
            })
            .collect()
    }

    /// Notes that an item was taken, and gives it its number.
    pub(super) fn took(&mut self) -> usize {
        let index = self.progress.taken;
        self.progress.taken += 1;
        self.outstanding += 1;
        index
    }

    /// Keeps a result for the consumer. One that `ends` goes first, where there is no order. It comes back when nobody
    /// wants it any more.
    pub(super) fn keep(&mut self, index: usize, outcome: Outcome<T>, ordered: bool, ends: bool) -> Option<Outcome<T>> {
        if self.stopped || self.died {
            return Some(outcome);
        }
        self.progress.finished += 1;
        if !ordered {
            if ends {
                self.results.push_front(Some(outcome));
            } else {
                self.results.push_back(Some(outcome));
            }
            return None;
        }
        let at = index - self.first;
        while self.results.len() <= at {
            self.results.push_back(None);
        }
        self.results[at] = Some(outcome);
        None
    }

    /// The result of this item, one in front of the failure, will not come. Who is to be woken.
    pub(super) fn miss(&mut self, index: usize) -> Option<Waker> {
        if seeded!("fan_out_misses_quietly") {
            return None;
        }
        let at = index.checked_sub(self.first)?;
        let result = self.results.get_mut(at)?;
        result.get_or_insert(Err(TaskError::Aborted));
        self.consumer.take()
    }

    /// Moves what is due into `due`, in order.
    pub(super) fn give(&mut self, due: &mut VecDeque<Outcome<T>>) {
        while let Some(Some(_)) = self.results.front() {
            self.first += 1;
            due.extend(self.results.pop_front().flatten());
        }
    }

    /// True when no result is to come.
    pub(super) fn is_over(&self) -> bool {
        self.stopped || (self.died && self.results.is_empty()) || (self.ended && self.progress.taken == self.first)
    }
}
