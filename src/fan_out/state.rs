//! The items of a fan-out, and the runners that take them. Each transition changes data alone and returns, as [`Acts`], the work to do after
//! the lock is released.
//!
//! - One runner at a time has the source: it takes the source, takes an item, gets the item's slot and admission, and puts
//!   the source back.
//! - A runner that has the source may take a few more items, for runners that are free soon: most of these do not need the
//!   source then, for which all runners compete.
//! - A runner idles while no item is ahead and the source is taken, or the buffer has no room for another result.
//! - Invariant, kept by [`call`](State::call) after each transition: while an item is ahead, or the source is free and the
//!   buffer has room, a runner was called to take it, or `limit` runners are busy. One runner is called at a time, so that
//!   a few runners handle a burst of short futures.
//! - Items ahead come after all items that have been started. So only the end of the source by a panic is a failure
//!   behind them.

use crate::pool::{Admitted, TaskError};
use crate::sync::runtime::AbortHandle;
use futures::Stream;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Poll, Waker};

/// The source of items, mapped to their futures.
pub(super) type Source<Fut> = Pin<Box<dyn Stream<Item = Taken<Fut>> + Send>>;

/// The future of an item and the admission by its own policy, or the reason that this policy refuses it.
type Taken<Fut> = Result<(Fut, Admitted), TaskError>;

/// The future of an item.
pub(super) trait Work: Future<Output: Send> + Send + 'static {}

impl<Fut: Future<Output: Send> + Send + 'static> Work for Fut {}

/// What a runner does next.
pub(super) enum Next<Fut> {
    /// Takes an item from the source, and at most this many more.
    Take(Source<Fut>, usize),
    /// Runs the future of this item, which was taken ahead.
    Run(usize, Fut),
}

/// The end of the source, and the result that replaces its items unless it ended by itself.
pub(super) type End = Option<TaskError>;

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
    /// `None` while a runner has it, and after the end.
    source: Option<Source<Fut>>,
    /// Items that were taken before a runner was free, and the most of them.
    ahead: VecDeque<(usize, Fut)>,
    most_ahead: usize,
    runners: Vec<Runner>,
    idle: Vec<usize>,
    /// The runner that was called to take the source.
    called: Option<usize>,
    /// Items that were taken, and those of them that were not yet given out as results.
    pub(super) taken: usize,
    outstanding: usize,
}

/// The thread that polls a runner writes it once or twice per item: so it has a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
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
    /// Wakes the runner that was called.
    pub(super) called: Option<Waker>,
    pub(super) others: Vec<Act>,
}

/// A rare kind of such work.
pub(super) enum Act {
    /// Drops the source, or an item.
    Drop(Box<dyn Send>),
    /// Ends the results after this number. The last of them is the end of the source if it did not end by itself.
    End(usize, End),
    /// Ends the results, some of which will not come.
    EndEarly,
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
    pub(super) fn new(source: Source<Fut>, ordered: bool, most_ahead: usize) -> Self {
        Self {
            phase: Phase::Running,
            ordered,
            source: Some(source),
            ahead: VecDeque::new(),
            most_ahead,
            runners: Vec::new(),
            idle: Vec::new(),
            called: None,
            taken: 0,
            outstanding: 0,
        }
    }

    /// Calls or starts a runner if an item is ahead, or the source is free.
    pub(super) fn call(&mut self, limit: usize, window: usize, acts: &mut Acts) {
        if self.called.is_some() || (self.source.is_none() && self.ahead.is_empty()) {
            return;
        }
        if self.ahead.is_empty() && self.outstanding >= window {
            return;
        }
        self.called = self.idle.pop();
        if let Some(runner) = self.called {
            acts.called = self.runners[runner].waker.take();
        } else if self.runners.len() < limit {
            acts.others.push(Act::Start(self.runners.len()));
            self.called = Some(self.runners.len());
            self.runners.push(Runner::default());
        }
    }

    /// Keeps the handle by which the runner's task is aborted.
    pub(super) fn started(&mut self, runner: usize, abort: AbortHandle, acts: &mut Acts) {
        match self.is_in_vain(runner) {
            true => acts.others.push(Act::Abort(abort)),
            false => self.runners[runner].abort = Some(abort),
        }
    }

    /// Gives an item ahead to a runner that has finished one. It needs no [`call`](Self::call): the runner was busy and stays so, and no higher
    /// limit is waited for, because nothing is taken ahead under shared slots. A runner that idled or was called looks by
    /// [`next`](Self::next), after which another is called.
    pub(super) fn take_ahead(&mut self, runner: usize) -> Option<Next<Fut>> {
        if self.called == Some(runner) || self.runners[runner].waker.is_some() {
            return None;
        }
        let (item, future) = self.ahead.pop_front()?;
        self.runners[runner].item = Some(item);
        Some(Next::Run(item, future))
    }

    /// Gives an item or the source to the runner, or lets it idle until it is called. Returns `None` at the end.
    pub(super) fn next(&mut self, runner: usize, window: usize, waker: &Waker) -> Poll<Option<Next<Fut>>> {
        self.runners[runner].item = None;
        if self.phase != Phase::Running && self.ahead.is_empty() {
            return Poll::Ready(None);
        }
        if self.runners[runner].waker.is_some() {
            return Poll::Pending;
        }
        if self.called == Some(runner) {
            self.called = None;
        }
        if let Some(ahead) = self.take_ahead(runner) {
            return Poll::Ready(Some(ahead));
        }
        if self.outstanding < window {
            if let Some(source) = self.source.take() {
                let more = self.most_ahead.min(window - self.outstanding - 1);
                return Poll::Ready(Some(Next::Take(source, more)));
            }
        }
        // The waker of a runner's own task: its clone runs no user code.
        self.runners[runner].waker = Some(waker.clone());
        self.idle.push(runner);
        Poll::Pending
    }

    /// Puts the source back, or ends it, with `more` items that were taken. Returns the number of the runner's item, or
    /// `None` if the fan-out has ended: `more` stays then.
    pub(super) fn put_back(
        &mut self,
        runner: usize,
        source: Source<Fut>,
        more: &mut Vec<Fut>,
        end: Option<End>,
        acts: &mut Acts,
    ) -> Option<usize> {
        if self.phase != Phase::Running {
            acts.drop(Some(source));
            return None;
        }
        let item = self.take_number();
        self.runners[runner].item = Some(item);
        for future in more.drain(..) {
            let item = self.take_number();
            self.ahead.push_back((item, future));
        }
        match end {
            None => self.source = Some(source),
            Some(end) => self.end(source, end, acts),
        }
        Some(item)
    }

    fn take_number(&mut self) -> usize {
        self.outstanding += 1;
        self.taken += 1;
        self.taken - 1
    }

    /// The consumer has given out this number of results.
    pub(super) fn given(&mut self, given: usize) {
        // Only a running source needs the count. The results of an end are not in it.
        if self.phase == Phase::Running {
            self.outstanding -= given;
        }
    }

    /// Ends the source. If it did not end by itself, `why` is one more result.
    pub(super) fn end(&mut self, source: Source<Fut>, why: End, acts: &mut Acts) {
        if self.phase == Phase::Running {
            self.phase = Phase::Ended;
            self.idle.clear();
            let idle = self.runners.iter_mut().filter_map(|runner| runner.waker.take());
            acts.others.extend(idle.map(Act::Wake));
            self.taken += usize::from(why.is_some());
            acts.others.push(Act::End(self.taken, why));
        }
        // After the consumer can learn of the end: the source's drop may wait for it.
        acts.drop(Some(source));
    }

    /// Ends the fan-out after the result of this item.
    pub(super) fn fail(&mut self, item: usize, acts: &mut Acts) {
        let counts = match self.phase {
            Phase::Running | Phase::Ended => true,
            Phase::Failed(failed) => item < failed,
            Phase::Dropped | Phase::Stopped => false,
        };
        if counts {
            self.phase = Phase::Failed(item);
            self.abort_in_vain(acts);
        }
    }

    /// Returns true if the consumer will not get the runner's results. If ordered, that is a runner behind the failure.
    fn is_in_vain(&self, runner: usize) -> bool {
        match self.phase {
            Phase::Failed(failed) => {
                let item = self.runners[runner].item;
                !self.ordered || item.map_or(self.ahead.is_empty(), |item| item > failed)
            }
            phase => phase == Phase::Stopped,
        }
    }

    /// Aborts the runners whose results are not needed, and drops the source and the items ahead that are not.
    fn abort_in_vain(&mut self, acts: &mut Acts) {
        let in_front = match self.phase {
            Phase::Failed(failed) if self.ordered => self.ahead.iter().filter(|(item, _)| *item < failed).count(),
            _ => 0,
        };
        let dropped = self.ahead.split_off(in_front);
        for runner in 0..self.runners.len() {
            if self.is_in_vain(runner) {
                acts.others.extend(self.runners[runner].abort.take().map(Act::Abort));
            }
        }
        // After the aborts: the source's drop may wait for a future of theirs.
        acts.drop(self.source.take());
        drop_each(dropped, acts);
    }

    /// Ends the fan-out after the runtime dropped a runner, with the item that it ran.
    pub(super) fn dropped(&mut self, runner: usize, acts: &mut Acts) {
        match self.phase {
            // The runner had no work left.
            Phase::Ended if self.runners[runner].item.is_none() && self.ahead.is_empty() => return,
            // The consumer waits for the items in front of the failure.
            Phase::Failed(_) if !self.ordered || self.is_in_vain(runner) => return,
            Phase::Dropped | Phase::Stopped => return,
            Phase::Running | Phase::Ended | Phase::Failed(_) => {}
        }
        self.phase = Phase::Dropped;
        // Before the drops, as in `end`.
        acts.others.push(Act::EndEarly);
        acts.drop(self.source.take());
        drop_each(std::mem::take(&mut self.ahead), acts);
    }

    /// Ends the fan-out: the consumer was dropped.
    pub(super) fn stop(&mut self, acts: &mut Acts) {
        self.phase = Phase::Stopped;
        self.abort_in_vain(acts);
    }
}

/// Drops items, each by itself, since drops may panic.
fn drop_each<Fut: Work>(items: VecDeque<(usize, Fut)>, acts: &mut Acts) {
    let drops = items.into_iter().map(|(_, future)| Act::Drop(Box::new(future) as _));
    acts.others.extend(drops);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Ready;

    /// Two failures in order may be carried here in either order.
    #[test]
    fn in_order_a_failure_that_comes_late_counts_in_front_alone() {
        for (first, second) in [(1, 3), (3, 1)] {
            let mut state = State::<Ready<()>>::new(Box::pin(futures::stream::empty()), true, 0);
            for item in [first, second] {
                state.fail(item, &mut Acts::default());
            }
            assert!(state.phase == Phase::Failed(1));
        }
    }

    /// Given two items ahead, then a panic of the source behind them leaves them if the results are in order; any other failure drops them.
    #[test]
    fn items_ahead_in_front_of_a_failure_stay_in_order() {
        for (ordered, fails, left) in [(true, 5, 2), (true, 4, 1), (true, 2, 0), (false, 5, 0)] {
            let mut state = State::<Ready<()>>::new(Box::pin(futures::stream::empty()), ordered, 2);
            state.ahead.extend([3, 4].map(|item| (item, std::future::ready(()))));
            let mut acts = Acts::default();
            state.fail(fails, &mut acts);
            let dropped = acts.others.iter().filter(|act| matches!(act, Act::Drop(_))).count();
            assert_eq!((state.ahead.len(), dropped), (left, 3 - left));
        }
    }

    /// Given a source that has ended while a runner has an item, then the end of the runtime is one of the fan-out if it takes that runner.
    #[test]
    fn a_dropped_runner_ends_the_fan_out_if_it_had_an_item() {
        let mut state = State::<Ready<()>>::new(Box::pin(futures::stream::empty()), false, 0);
        let mut acts = Acts::default();
        state.call(2, 2, &mut acts);
        let Poll::Ready(Some(Next::Take(source, 0))) = state.next(0, 2, Waker::noop()) else {
            panic!("the source is free");
        };
        assert_eq!(state.put_back(0, source, &mut Vec::new(), None, &mut acts), Some(0));
        state.call(2, 2, &mut acts);
        let Poll::Ready(Some(Next::Take(source, 0))) = state.next(1, 2, Waker::noop()) else {
            panic!("the source is free");
        };
        state.end(source, None, &mut acts);
        assert!(acts.others.iter().any(|act| matches!(act, Act::End(1, None))));
        for (runner, ends) in [(1, false), (0, true), (0, false)] {
            let mut acts = Acts::default();
            state.dropped(runner, &mut acts);
            assert_eq!(acts.others.iter().any(|act| matches!(act, Act::EndEarly)), ends);
        }
    }
}
