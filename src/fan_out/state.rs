//! The state under the lock of a fan-out. Each transition changes data alone and returns, as [`Acts`], the work to do after
//! the lock is released.
//!
//! - One runner at a time has the source: it takes the source, takes an item, gets the item's slot and admission, and puts
//!   the source back.
//! - A runner idles while the source is taken, or while the buffer has no room for another result.
//! - Invariant, kept by [`call`](State::call) after each transition: while the source is free and the buffer has room, a
//!   runner was called to take it, or `limit` runners are busy. One runner is called at a time, so that a few runners handle
//!   a burst of short futures.

use super::progress::Progress;
use crate::pool::{AbortHandle, Admitted, TaskError};
use futures::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Poll, Waker};

/// The source of items, mapped to their futures.
pub(super) type Source<Fut> = Pin<Box<dyn Stream<Item = Taken<Fut>> + Send>>;

/// The future of an item, or the reason that its own policy refuses it, and the admission by that policy.
pub(super) struct Taken<Fut> {
    pub(super) work: Result<Fut, TaskError>,
    pub(super) admitted: Admitted,
}

/// The future of an item.
pub(super) trait Work: Future<Output: Send> + Send + 'static {}

impl<Fut: Future<Output: Send> + Send + 'static> Work for Fut {}

/// The outcome of an item.
pub(super) type Outcome<T> = Result<T, TaskError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// The source has ended.
    Ended,
    /// The result of this item has ended the fan-out. If ordered, it is the first such item.
    Failed(usize),
    /// The runtime has dropped a runner: no further result is to come.
    Dropped,
    /// The consumer was dropped.
    Stopped,
}

pub(super) struct State<Fut: Work> {
    phase: Phase,
    ordered: bool,
    /// Whether a result ends the fan-out.
    fails: fn(&Outcome<Fut::Output>) -> bool,
    /// `None` while a runner has it, and after the end.
    source: Option<Source<Fut>>,
    runners: Vec<Runner>,
    idle: Vec<usize>,
    /// The runner that was called to take the source.
    called: Option<usize>,
    /// If ordered, the results from item `first` on, with gaps for those to come. Otherwise in the order of arrival.
    results: VecDeque<Option<Outcome<Fut::Output>>>,
    first: usize,
    /// Items that were taken and not yet given out as results.
    pub(super) outstanding: usize,
    consumer: Option<Waker>,
    progress: Progress,
    /// The number of the watch for a shared limit above this one.
    pub(super) watch: Option<(u64, usize)>,
}

#[derive(Default)]
struct Runner {
    /// `None` until the runner was started, and once it was aborted.
    abort: Option<AbortHandle>,
    /// The item that it runs.
    item: Option<usize>,
    /// `Some` while the runner idles.
    waker: Option<Waker>,
}

/// The work to do after the lock is released.
#[must_use]
#[derive(Default)]
pub(super) struct Acts {
    pub(super) consumer: Option<Waker>,
    /// Wakes the runner that was called.
    pub(super) called: Option<Waker>,
    pub(super) progress: Option<Progress>,
    pub(super) others: Vec<Act>,
}

/// A rare kind of such work.
pub(super) enum Act {
    /// Drops the source, or a result that the consumer does not get.
    Drop(Box<dyn Send>),
    Start(usize),
    Wake(Waker),
    Abort(AbortHandle),
}

impl Acts {
    fn drop(&mut self, dropped: Option<impl Send + 'static>) {
        self.others.extend(dropped.map(|dropped| Act::Drop(Box::new(dropped))));
    }
}

impl<Fut: Work> State<Fut> {
    pub(super) fn new(
        source: Source<Fut>,
        ordered: bool,
        fails: fn(&Outcome<Fut::Output>) -> bool,
        total: Option<usize>,
    ) -> Self {
        Self {
            phase: Phase::Running,
            ordered,
            fails,
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
            watch: None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Calls or starts a runner if the source is free. Returns false if only a higher limit would let a runner take it.
    pub(super) fn call(&mut self, limit: usize, window: usize, acts: &mut Acts) -> bool {
        if self.source.is_none() || self.called.is_some() {
            return true;
        }
        if self.outstanding >= window {
            return false;
        }
        self.called = self.idle.pop();
        if let Some(runner) = self.called {
            acts.called = self.runners[runner].waker.take();
        } else if self.runners.len() < limit {
            acts.others.push(Act::Start(self.runners.len()));
            self.called = Some(self.runners.len());
            self.runners.push(Runner::default());
        }
        self.called.is_some()
    }

    /// Keeps the handle by which the runner's task is aborted.
    pub(super) fn started(&mut self, runner: usize, abort: AbortHandle, acts: &mut Acts) {
        match self.is_in_vain(runner) {
            true => acts.others.push(Act::Abort(abort)),
            false => self.runners[runner].abort = Some(abort),
        }
    }

    /// Gives the source to the runner, or lets it idle until it is called. Returns `None` at the end.
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
        // The waker of a runner's own task: its clone runs no user code.
        self.runners[runner].waker = Some(waker.clone());
        self.idle.push(runner);
        Poll::Pending
    }

    /// Puts the source back and returns the number of the runner's item, or `None` if the fan-out has ended.
    pub(super) fn put_back(&mut self, runner: usize, source: Source<Fut>, acts: &mut Acts) -> Option<usize> {
        if self.phase != Phase::Running {
            acts.drop(Some(source));
            return None;
        }
        self.source = Some(source);
        let item = self.take_number();
        self.runners[runner].item = Some(item);
        Some(item)
    }

    fn take_number(&mut self) -> usize {
        self.outstanding += 1;
        self.progress.taken += 1;
        self.progress.taken - 1
    }

    /// Delivers the outcome of the runner's item.
    pub(super) fn finished(&mut self, runner: usize, item: usize, outcome: Outcome<Fut::Output>, acts: &mut Acts) {
        self.runners[runner].item = None;
        self.deliver(item, outcome, acts);
        acts.progress = Some(self.progress);
    }

    /// Ends the source. If it did not end by itself, `why` is one more result.
    pub(super) fn end(&mut self, source: Source<Fut>, why: Option<TaskError>, acts: &mut Acts) {
        acts.drop(Some(source));
        if self.phase == Phase::Running {
            self.phase = Phase::Ended;
            let idle = self.runners.iter_mut().filter_map(|runner| runner.waker.take());
            acts.others.extend(idle.map(Act::Wake));
            if let Some(why) = why {
                let item = self.take_number();
                self.deliver(item, Err(why), acts);
            }
        }
        acts.consumer = acts.consumer.take().or_else(|| self.consumer.take());
    }

    /// Keeps a result for the consumer. A failure ends the fan-out, and is given out first unless the results are ordered.
    fn deliver(&mut self, item: usize, outcome: Outcome<Fut::Output>, acts: &mut Acts) {
        self.progress.finished += 1;
        let ends = match self.phase {
            Phase::Running | Phase::Ended => true,
            Phase::Failed(failed) => self.ordered && item < failed,
            Phase::Dropped | Phase::Stopped => return acts.drop(Some(outcome)),
        };
        let fails = ends && (self.fails)(&outcome);
        if self.ordered {
            *self.place(item) = Some(outcome);
        } else if fails {
            self.results.push_front(Some(outcome));
        } else {
            self.results.push_back(Some(outcome));
        }
        if fails {
            self.phase = Phase::Failed(item);
            self.abort_in_vain(acts);
        }
        acts.consumer = self.consumer.take();
    }

    /// Returns the place for the item's result. Ordered results only.
    fn place(&mut self, item: usize) -> &mut Option<Outcome<Fut::Output>> {
        let at = item - self.first;
        if self.results.len() <= at {
            self.results.resize_with(at + 1, || None);
        }
        &mut self.results[at]
    }

    /// Returns true if the consumer will not get the runner's results. If ordered, that is a runner behind the failure.
    fn is_in_vain(&self, runner: usize) -> bool {
        match self.phase {
            Phase::Failed(failed) => !self.ordered || self.runners[runner].item.is_none_or(|item| item > failed),
            phase => phase == Phase::Stopped,
        }
    }

    /// Aborts the runners whose results are not needed, and drops the source.
    fn abort_in_vain(&mut self, acts: &mut Acts) {
        for runner in 0..self.runners.len() {
            if self.is_in_vain(runner) {
                acts.others.extend(self.runners[runner].abort.take().map(Act::Abort));
            }
        }
        // After the aborts: the source's drop may wait for a future of theirs.
        acts.drop(self.source.take());
    }

    /// Ends the fan-out after the runtime dropped a runner, with the item that it ran.
    pub(super) fn dropped(&mut self, runner: usize, acts: &mut Acts) {
        match self.phase {
            // The runner had no work left.
            Phase::Ended if self.runners[runner].item.is_none() => return,
            Phase::Running | Phase::Ended => {
                self.phase = Phase::Dropped;
                acts.drop(self.source.take());
                // One result replaces all that are missing.
                self.results.retain(Option::is_some);
                self.results.push_back(Some(Err(TaskError::Aborted)));
                self.outstanding += 1;
            }
            // The consumer waits for the items in front of the failure.
            Phase::Failed(_) if self.ordered && !self.is_in_vain(runner) => {
                if let Some(item) = self.runners[runner].item {
                    self.place(item).get_or_insert(Err(TaskError::Aborted));
                }
            }
            _ => return,
        }
        acts.consumer = self.consumer.take();
    }

    /// Moves results into `due`, which is empty, or leaves the waker. Returns false if no result is to come.
    pub(super) fn poll_due(
        &mut self,
        due: &mut VecDeque<Outcome<Fut::Output>>,
        waker: &mut Option<Waker>,
    ) -> Poll<bool> {
        while let Some(result) = self.results.front_mut().and_then(Option::take) {
            self.results.pop_front();
            self.first += 1;
            due.push_back(result);
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

    /// Ends the fan-out: the consumer was dropped.
    pub(super) fn stop(&mut self, acts: &mut Acts) {
        self.phase = Phase::Stopped;
        self.abort_in_vain(acts);
    }
}
