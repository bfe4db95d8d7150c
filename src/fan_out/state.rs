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
use futures::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Poll, Waker};

/// Gives a future for each item.
pub(super) type Source<Fut> = Pin<Box<dyn Stream<Item = Fut> + Send>>;

/// The future of an item.
pub(super) trait Work: Future<Output: Send> + Send + 'static {}

impl<Fut: Future<Output: Send> + Send + 'static> Work for Fut {}

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

pub(super) struct State<Fut: Work> {
    phase: Phase,
    ordered: bool,
    /// Whether a result ends the fan-out.
    fails: fn(&Outcome<Fut::Output>) -> bool,
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
    pub(super) outstanding: usize,
    consumer: Option<Waker>,
    progress: Progress,
    /// The number of the watch for a limit of shared slots above this one.
    pub(super) watch: Option<(u64, usize)>,
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
#[derive(Default)]
pub(super) struct Acts {
    pub(super) consumer: Option<Waker>,
    /// Of the runner that is called.
    pub(super) called: Option<Waker>,
    pub(super) progress: Option<Progress>,
    pub(super) others: Vec<Act>,
}

/// What is to be done now and then.
pub(super) enum Act {
    /// The source, or a result that the consumer does not get.
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

    /// Calls or starts a runner, if one is to take the source. False when a higher limit would let one do so.
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

    // ---- runners ----

    /// The runner is a task from now on.
    pub(super) fn started(&mut self, runner: usize, abort: AbortHandle, acts: &mut Acts) {
        match self.is_in_vain(runner) {
            true => acts.others.push(Act::Abort(abort)),
            false => self.runners[runner].abort = Some(abort),
        }
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

    /// The runner puts the source back after it got an item. None when the fan-out has ended.
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

    /// The item of the runner has ended.
    pub(super) fn finished(&mut self, runner: usize, item: usize, outcome: Outcome<Fut::Output>, acts: &mut Acts) {
        self.runners[runner].item = None;
        self.deliver(item, outcome, acts);
        acts.progress = Some(self.progress);
    }

    /// The source has ended. With `why` it did not end by itself: that is one more result.
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

    /// Keeps a result for the consumer. A failure ends the fan-out, and goes first, where there is no order.
    fn deliver(&mut self, item: usize, outcome: Outcome<Fut::Output>, acts: &mut Acts) {
        self.progress.finished += 1;
        let ends = match self.phase {
            Phase::Running => true,
            Phase::Ended => !seeded!("fan_out_overlooks_a_late_failure"),
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
    fn abort_in_vain(&mut self, acts: &mut Acts) {
        for runner in 0..self.runners.len() {
            if self.is_in_vain(runner) && !seeded!("fan_out_runs_in_vain") {
                acts.others.extend(self.runners[runner].abort.take().map(Act::Abort));
            }
        }
        // After them: its drop may wait for what they run.
        acts.drop(self.source.take());
    }

    /// The runner was dropped before its end, with the item that it ran.
    pub(super) fn dropped(&mut self, runner: usize, acts: &mut Acts) {
        match self.phase {
            // It had nothing more to do.
            Phase::Ended if self.runners[runner].item.is_none() => return,
            Phase::Running | Phase::Ended => {
                self.phase = Phase::Dropped;
                acts.drop(self.source.take());
                // The gaps stay empty: one result in the place of all that are missing.
                self.results.retain(Option::is_some);
                self.results.push_back(Some(Err(TaskError::Aborted)));
                self.outstanding += 1;
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

    /// Moves results into `due`, which is empty, or leaves the waker. False when no result is to come.
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

    /// The consumer has gone.
    pub(super) fn stop(&mut self, acts: &mut Acts) {
        self.phase = Phase::Stopped;
        self.abort_in_vain(acts);
    }
}
