//! What the lock of a fan-out guards. Each transition is plain data; what is to be done after the lock comes back in
//! [`Acts`].
//!
//! - One runner at a time has the source: it takes that out, gets an item and what the item runs under, and puts the
//!   source back.
//! - A runner idles when the source is taken, or there is no room for another result.
//! - The invariant, which [`call`](State::call) keeps after each transition: while the source is here and there is room for
//!   another result, a runner is on its way to take it, or as many as may run are busy. One is called at a time, so that a
//!   burst of short futures is run by few.

use super::progress::Progress;
use crate::pool::{AbortHandle, TaskError};
use crate::semaphore::Semaphore;
use crate::sync::watchers::Rest;
use futures::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Poll, Waker};

/// Gives a future for each item.
pub(super) type Source<Fut> = Pin<Box<dyn Stream<Item = Fut> + Send>>;

/// What came of an item.
pub(super) type Outcome<T> = Result<T, TaskError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The source has ended.
    Ended,
    /// The result of this item has ended it: in order, the first of those.
    Failed(usize),
    /// The runtime has dropped a runner: no result comes beside those that are here.
    Dropped,
    /// The consumer has gone.
    Stopped,
}

pub(super) struct State<Fut: Future> {
    phase: Phase,
    ordered: bool,
    /// None while a runner has it, and after the end.
    source: Option<Source<Fut>>,
    runners: Vec<Runner>,
    idle: Vec<usize>,
    /// The runner that is on its way to take the source.
    called: Option<usize>,
    /// Results, in order from `first` on, with gaps where those are still to come; as they came, without gaps, else.
    results: VecDeque<Option<Outcome<Fut::Output>>>,
    first: usize,
    /// Items that were taken whose results have not been given out.
    outstanding: usize,
    consumer: Option<Waker>,
    progress: Progress,
    pub(super) watch: LimitWatch,
}

/// Wakes for a higher limit of slots that others share. It is there while that would let another runner take the source.
#[derive(Default)]
pub(super) struct LimitWatch {
    number: Option<u64>,
    above: usize,
}

impl LimitWatch {
    /// Watches for a limit above this. False, and it does not, when the limit is above now. `waker` only makes one.
    pub(super) fn keep(&mut self, slots: &Semaphore, above: usize, waker: impl FnOnce() -> Waker) -> bool {
        if self.number.is_some() && self.above == above {
            return true;
        }
        self.end(slots);
        self.above = above;
        slots.watch(&mut self.number, Rest::Above(above), waker)
    }

    pub(super) fn end(&mut self, slots: &Semaphore) {
        slots.watch_no_more(&mut self.number);
    }
}

#[derive(Default)]
struct Runner {
    /// None until it has been started, and once it was ended.
    abort: Option<AbortHandle>,
    /// The item that it runs.
    item: Option<usize>,
    /// There while it idles.
    waker: Option<Waker>,
}

/// What is to be done after the lock.
#[must_use]
pub(super) struct Acts<Fut: Future> {
    pub(super) source: Option<Source<Fut>>,
    /// A result that the consumer does not get.
    pub(super) unwanted: Option<Outcome<Fut::Output>>,
    pub(super) consumer: Option<Waker>,
    pub(super) progress: Option<Progress>,
    /// Runners to be woken, started, and aborted.
    pub(super) wake: Vec<Waker>,
    pub(super) call: Option<Waker>,
    pub(super) start: Option<usize>,
    pub(super) abort: Vec<AbortHandle>,
}

impl<Fut: Future> Default for Acts<Fut> {
    fn default() -> Self {
        Self {
            source: None,
            unwanted: None,
            consumer: None,
            progress: None,
            wake: Vec::new(),
            call: None,
            start: None,
            abort: Vec::new(),
        }
    }
}

impl<Fut: Future> State<Fut> {
    pub(super) fn new(source: Source<Fut>, ordered: bool, total: Option<usize>) -> Self {
        Self {
            phase: Phase::Running,
            ordered,
            source: Some(source),
            runners: Vec::new(),
            idle: Vec::new(),
            called: None,
            results: VecDeque::new(),
            first: 0,
            outstanding: 0,
            consumer: None,
            progress: Progress {
                total,
                ..Progress::default()
            },
            watch: LimitWatch::default(),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Calls or starts a runner, if one is to take the source. False when a higher limit would let one do so.
    pub(super) fn call(&mut self, limit: usize, window: usize, acts: &mut Acts<Fut>) -> bool {
        if self.source.is_none() || self.called.is_some() {
            return true;
        }
        if self.outstanding >= window {
            return false;
        }
        self.called = self.idle.pop();
        if let Some(runner) = self.called {
            acts.call = self.runners[runner].waker.take();
        } else if self.runners.len() < limit {
            acts.start = Some(self.runners.len());
            self.called = acts.start;
            self.runners.push(Runner::default());
        }
        self.called.is_some()
    }

    // ---- runners ----

    /// The runner is a task from now on. Comes back when it is to be aborted.
    pub(super) fn started(&mut self, runner: usize, abort: AbortHandle) -> Option<AbortHandle> {
        if self.is_in_vain(runner) {
            return Some(abort);
        }
        self.runners[runner].abort = Some(abort);
        None
    }

    /// The runner takes the source, or idles until it is called. None at the end.
    pub(super) fn next(&mut self, runner: usize, window: usize, waker: &Waker) -> Poll<Option<Source<Fut>>> {
        if self.phase != Phase::Running {
            return Poll::Ready(None);
        }
        if self.runners[runner].waker.is_some() {
            return Poll::Pending;
        }
        if self.called == Some(runner) && !(self.source.is_none() && seeded!("fan_out_stays_called")) {
            self.called = None;
        }
        if self.outstanding < window
            && let Some(source) = self.source.take()
        {
            return Poll::Ready(Some(source));
        }
        // Of a runner's own task: a clone runs no code of a user's.
        self.runners[runner].waker = Some(waker.clone());
        self.idle.push(runner);
        Poll::Pending
    }

    /// The runner puts the source back after it got an item, which it runs if it has a number.
    pub(super) fn put_back(&mut self, runner: usize, source: Source<Fut>, acts: &mut Acts<Fut>) -> Option<usize> {
        let source = Some(source);
        if self.phase != Phase::Running {
            acts.source = source;
            return None;
        }
        self.source = source;
        let item = self.take_number();
        self.runners[runner].item = Some(item);
        Some(item)
    }

    fn take_number(&mut self) -> usize {
        self.outstanding += 1;
        self.progress.taken += 1;
        self.progress.taken - 1
    }

    /// The item of the runner has ended. One that `fails` ends the fan-out.
    pub(super) fn finished(
        &mut self,
        runner: usize,
        item: usize,
        outcome: Outcome<Fut::Output>,
        fails: bool,
        acts: &mut Acts<Fut>,
    ) {
        self.runners[runner].item = None;
        self.progress.finished += 1;
        acts.progress = Some(self.progress);
        self.deliver(item, outcome, fails, acts);
    }

    /// The source has ended. With `why` it did not end by itself: that is one more result.
    pub(super) fn end(
        &mut self,
        source: Source<Fut>,
        why: Option<Outcome<Fut::Output>>,
        fails: bool,
        acts: &mut Acts<Fut>,
    ) {
        acts.source = Some(source);
        acts.consumer = self.consumer.take();
        if self.phase != Phase::Running {
            acts.unwanted = why;
            return;
        }
        self.phase = Phase::Ended;
        for idle in std::mem::take(&mut self.idle) {
            acts.wake.extend(self.runners[idle].waker.take());
        }
        if let Some(why) = why {
            let item = self.take_number();
            self.progress.finished += 1;
            self.deliver(item, why, fails, acts);
        }
    }

    /// Keeps a result for the consumer. A failure goes first, where there is no order.
    fn deliver(&mut self, item: usize, outcome: Outcome<Fut::Output>, fails: bool, acts: &mut Acts<Fut>) {
        let ends = fails
            && match self.phase {
                Phase::Running => true,
                Phase::Ended => !seeded!("fan_out_overlooks_a_late_failure"),
                Phase::Failed(failed) => self.ordered && item < failed,
                Phase::Dropped | Phase::Stopped => false,
            };
        if matches!(self.phase, Phase::Dropped | Phase::Stopped) {
            acts.unwanted = Some(outcome);
            return;
        }
        acts.consumer = acts.consumer.take().or_else(|| self.consumer.take());
        if self.ordered {
            *self.place(item) = Some(outcome);
        } else if ends {
            self.results.push_front(Some(outcome));
        } else {
            self.results.push_back(Some(outcome));
        }
        if ends {
            self.phase = Phase::Failed(item);
            self.abort_in_vain(acts);
        }
    }

    /// Where the result of the item goes, in order.
    fn place(&mut self, item: usize) -> &mut Option<Outcome<Fut::Output>> {
        let at = item - self.first;
        if self.results.len() <= at {
            self.results.resize_with(at + 1, || None);
        }
        &mut self.results[at]
    }

    /// True of a runner whose results the consumer will not get: in order, one that is not in front of the failure.
    fn is_in_vain(&self, runner: usize) -> bool {
        match self.phase {
            Phase::Failed(failed) => !self.ordered || self.runners[runner].item.is_none_or(|item| item > failed),
            phase => phase == Phase::Stopped,
        }
    }

    /// It has failed, or the consumer has gone: what is not needed ends.
    fn abort_in_vain(&mut self, acts: &mut Acts<Fut>) {
        acts.source = acts.source.take().or_else(|| self.source.take());
        for runner in 0..self.runners.len() {
            if self.is_in_vain(runner) && !seeded!("fan_out_runs_in_vain") {
                acts.abort.extend(self.runners[runner].abort.take());
            }
        }
    }

    /// The runner was dropped before its end, with the item that it ran.
    pub(super) fn dropped(&mut self, runner: usize, acts: &mut Acts<Fut>) {
        match self.phase {
            Phase::Running | Phase::Ended => {
                self.phase = Phase::Dropped;
                acts.source = self.source.take();
                // The gaps stay empty: one result in the place of all that are missing.
                self.results.retain(Option::is_some);
                self.results.push_back(Some(Err(TaskError::Aborted)));
            }
            // The consumer waits for what is in front of the failure.
            Phase::Failed(_) if self.ordered && !self.is_in_vain(runner) && !seeded!("fan_out_misses_quietly") => {
                if let Some(item) = self.runners[runner].item {
                    self.place(item).get_or_insert(Err(TaskError::Aborted));
                }
            }
            _ => return,
        }
        acts.consumer = self.consumer.take();
    }

    // ---- the consumer ----

    /// The consumer has given out `given` results.
    pub(super) fn given(&mut self, given: usize) {
        self.outstanding -= given;
    }

    /// Moves results into `due`, which is empty, or leaves the waker. False when no result is to come.
    pub(super) fn poll_due(
        &mut self,
        due: &mut VecDeque<Outcome<Fut::Output>>,
        waker: &mut Option<Waker>,
    ) -> Poll<bool> {
        while let Some(Some(_)) = self.results.front() {
            self.first += 1;
            due.extend(self.results.pop_front().flatten());
        }
        let is_over = match self.phase {
            Phase::Running => false,
            Phase::Ended | Phase::Failed(_) => self.progress.taken == self.first,
            Phase::Dropped => self.results.is_empty(),
            Phase::Stopped => true,
        };
        if is_over || !due.is_empty() {
            return Poll::Ready(!due.is_empty());
        }
        std::mem::swap(&mut self.consumer, waker);
        Poll::Pending
    }

    /// The consumer has gone.
    pub(super) fn stop(&mut self, acts: &mut Acts<Fut>) {
        self.phase = Phase::Stopped;
        self.abort_in_vain(acts);
    }
}
