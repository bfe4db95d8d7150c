//! What runners and the consumer of a fan-out share, and the moves that each makes under one lock. Wakers, futures,
//! hooks, and drops of a user's things come after it.

use super::progress::Hook;
use super::runner;
use super::state::{Help, Outcome, Source, State};
use crate::pool::{Caller, Gate, Runtime, TaskError, drop_quietly, wake};
use crate::semaphore::Semaphore;
use crate::sync::shim::Mutex;
use futures::Stream;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Wake, Waker};

pub(super) struct Settings<T> {
    pub(super) slots: Arc<Semaphore>,
    /// True when others hold permits of the slots as well.
    pub(super) shared_slots: bool,
    pub(super) ordered: bool,
    pub(super) ahead: Option<usize>,
    pub(super) gate: Option<Arc<dyn Gate>>,
    pub(super) progress: Option<Box<Hook>>,
    pub(super) total: Option<usize>,
    /// Whether a result ends the fan-out.
    pub(super) fails: fn(&Outcome<T>) -> bool,
    pub(super) caller: Caller,
    pub(super) runtime: Runtime,
}

pub(super) struct Shared<S, F, T> {
    pub(super) settings: Settings<T>,
    state: Mutex<State<S, F, T>>,
}

/// What a runner does next.
pub(super) enum Next<S, F> {
    /// It has the source.
    Look(Box<Source<S, F>>),
    /// Others have it, or there is no room.
    Idle,
    End,
}

impl<S, F, Fut> Shared<S, F, Fut::Output>
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
    F: FnMut(S::Item) -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    pub(super) fn new(settings: Settings<Fut::Output>, source: Source<S, F>) -> Arc<Self> {
        let state = Mutex::new(State::new(source, settings.total));
        Arc::new(Self { settings, state })
    }

    pub(super) fn begin(self: &Arc<Self>) {
        let help = self.call_for_help(&mut self.state.lock());
        self.help(help);
    }

    fn call_for_help(self: &Arc<Self>, state: &mut State<S, F, Fut::Output>) -> Help {
        loop {
            let limit = self.settings.slots.limit();
            // A limit of zero may be raised: one runner waits for that.
            let help = state.call_for_help(limit.max(1), self.window(limit));
            let held_back = matches!(help, Help::Nobody) && state.looking == 0 && !state.ended;
            // Nobody else has slots that are not shared.
            if !held_back || !self.settings.shared_slots {
                return help;
            }
            let waker = || Waker::from(Arc::new(LimitIsRaised(Arc::downgrade(self))));
            if state.limit_watch.keep(&self.settings.slots, limit, waker) {
                return help;
            }
        }
    }

    /// The limit has been raised while nobody could be called.
    fn raised(self: &Arc<Self>) {
        let help = {
            let mut state = self.state.lock();
            state.limit_watch.end(&self.settings.slots);
            self.call_for_help(&mut state)
        };
        self.help(help);
    }

    fn window(&self, limit: usize) -> usize {
        limit.saturating_add(self.settings.ahead.unwrap_or(limit)).max(1)
    }

    fn help(self: &Arc<Self>, help: Help) {
        match help {
            Help::Nobody => {}
            Help::Wake(waker) => waker.wake(),
            Help::Start(me) => {
                let handle = self.settings.runtime.spawn(runner::run(Arc::clone(self), me));
                let mut state = self.state.lock();
                if state.is_over() || state.is_in_vain(me, self.settings.ordered) {
                    drop(state);
                    handle.abort();
                } else {
                    state.runners[me].abort = Some(handle);
                }
            }
        }
    }

    /// Asks for the source. With `done` the result of the last item is delivered on the way.
    pub(super) fn next(
        self: &Arc<Self>,
        me: usize,
        looking: &mut bool,
        done: Option<(usize, Outcome<Fut::Output>)>,
    ) -> Next<S, F> {
        let mut consumer = None;
        let (mut dropped, mut others, mut progress, mut unwanted) = (None, Vec::new(), None, None);
        let fails = done.as_ref().is_some_and(|(_, outcome)| (self.settings.fails)(outcome));
        let mut state = self.state.lock();
        if let Some((index, outcome)) = done {
            let ordered = self.settings.ordered;
            let fails = fails && state.ends_with(index, ordered);
            state.runners[me].item = None;
            unwanted = state.keep(index, outcome, ordered, fails);
            consumer = state.consumer.take();
            progress = self.settings.progress.is_some().then_some(state.progress);
            if fails {
                (state.ended, state.failed) = (true, Some(index));
                dropped = state.source.take();
                // This one ends by itself.
                state.runners[me].abort = None;
                others = state.end_in_vain(ordered);
            }
        }
        let window = self.window(self.settings.slots.limit());
        let next = if state.ended {
            Next::End
        } else if state.outstanding >= window {
            Next::Idle
        } else {
            match state.source.take() {
                Some(source) => Next::Look(source),
                None => Next::Idle,
            }
        };
        let looks = matches!(next, Next::Look(_));
        state.looking = state.looking + usize::from(looks) - usize::from(std::mem::replace(looking, looks));
        drop(state);
        drop_quietly(dropped);
        drop_quietly(unwanted);
        wake(consumer);
        if let (Some(hook), Some(progress)) = (&self.settings.progress, progress) {
            drop_quietly(catch_unwind(AssertUnwindSafe(|| hook(progress))));
        }
        for other in others {
            other.abort();
        }
        next
    }

    /// Puts the source back after an item was taken, and calls the next to look. `None`: the fan-out has ended.
    pub(super) fn put_back(
        self: &Arc<Self>,
        me: usize,
        source: Box<Source<S, F>>,
        looking: &mut bool,
    ) -> Option<usize> {
        let mut state = self.state.lock();
        if std::mem::take(looking) {
            state.looking -= 1;
        }
        if state.ended {
            drop(state);
            drop_quietly(source);
            return None;
        }
        let index = state.took();
        state.runners[me].item = Some(index);
        state.source = Some(source);
        let help = self.call_for_help(&mut state);
        drop(state);
        self.help(help);
        Some(index)
    }

    /// The source has ended; `why`, if it did not end by itself, is one more result.
    pub(super) fn end(&self, source: Box<Source<S, F>>, looking: &mut bool, why: Option<TaskError>) {
        let ordered = self.settings.ordered;
        let (mut unwanted, mut others) = (None, Vec::new());
        let why = why.map(Err);
        let fails = why.as_ref().is_some_and(self.settings.fails);
        let mut state = self.state.lock();
        if std::mem::take(looking) {
            state.looking -= 1;
        }
        if !std::mem::replace(&mut state.ended, true)
            && let Some(why) = why
        {
            let index = state.took();
            unwanted = state.keep(index, why, ordered, fails);
            if fails {
                state.failed = Some(index);
                others = state.end_in_vain(ordered);
            }
        }
        let consumer = state.consumer.take();
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop_quietly(source);
        drop_quietly(unwanted);
        wake(consumer);
        for (_, waker) in idle {
            wake(Some(waker));
        }
        for other in others {
            other.abort();
        }
    }

    /// Idles until called: then this runner looks.
    pub(super) fn poll_idle(self: &Arc<Self>, me: &Arc<AtomicBool>, queued: &mut bool, waker: &Waker) -> Poll<()> {
        let waker = (!*queued).then(|| waker.clone());
        let mut help = Help::Nobody;
        let mut state = self.state.lock();
        if state.ended || me.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        if let Some(waker) = waker {
            *queued = true;
            state.idle.push((Arc::clone(me), waker));
            // There may be room, or the source, by now: the invariant holds again.
            if state.source.is_some() && !seeded!("fan_out_idles_blindly") {
                help = self.call_for_help(&mut state);
            }
        }
        drop(state);
        if let Help::Wake(waker) = help {
            waker.wake();
        }
        Poll::Pending
    }
}

/// What a limit wakes that is raised.
struct LimitIsRaised<S, F, T>(Weak<Shared<S, F, T>>);

impl<S, F, Fut> Wake for LimitIsRaised<S, F, Fut::Output>
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
    F: FnMut(S::Item) -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let Some(shared) = self.0.upgrade() else { return };
        if !seeded!("fan_out_misses_a_limit") {
            shared.raised();
        }
        // All others may have gone meanwhile: then results are dropped here.
        drop_quietly(shared);
    }
}

impl<S, F, T> Drop for Shared<S, F, T> {
    fn drop(&mut self) {
        self.state.get_mut().limit_watch.end(&self.settings.slots);
    }
}

impl<S, F, T> runner::Died for Shared<S, F, T> {
    fn died(&self, me: usize) {
        let ordered = self.settings.ordered;
        let mut state = self.state.lock();
        if state.failed.is_some() {
            // In order, what stands in front of the failure is still waited for.
            let item = state.runners[me].item;
            let missed = item.filter(|_| ordered && !state.is_in_vain(me, ordered));
            let consumer = missed.and_then(|item| state.miss(item));
            drop(state);
            wake(consumer);
            return;
        }
        if state.stopped || std::mem::replace(&mut state.died, true) {
            return;
        }
        state.ended = true;
        let source = state.source.take();
        // What is to come no more leaves no gaps, and is told of once.
        state.results.retain(Option::is_some);
        state.results.push_back(Some(Err(TaskError::Aborted)));
        let consumer = state.consumer.take();
        drop(state);
        drop_quietly(source);
        wake(consumer);
    }
}

/// The consumer's side, without the types of the source.
pub(super) trait Deliver<T>: Send + Sync {
    /// Moves results into `due`, which is empty; `given` results have been given out since the last time. `Ready(false)`
    /// when none is to come.
    fn poll_due(self: Arc<Self>, due: &mut VecDeque<Outcome<T>>, given: usize, waker: &Waker) -> Poll<bool>;
    /// So many results have been given out.
    fn given(self: Arc<Self>, given: usize);
    /// Nobody wants the rest.
    fn stop(&self);
}

impl<S, F, Fut> Deliver<Fut::Output> for Shared<S, F, Fut::Output>
where
    S: Stream + Send + 'static,
    S::Item: Send + 'static,
    F: FnMut(S::Item) -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: Send + 'static,
{
    fn poll_due(self: Arc<Self>, due: &mut VecDeque<Outcome<Fut::Output>>, given: usize, waker: &Waker) -> Poll<bool> {
        let mut waker = Some(waker.clone());
        let mut state = self.state.lock();
        state.outstanding -= given;
        state.give(due);
        let polled = if !due.is_empty() {
            Poll::Ready(true)
        } else if state.is_over() {
            Poll::Ready(false)
        } else {
            std::mem::swap(&mut state.consumer, &mut waker);
            Poll::Pending
        };
        let help = self.call_for_help(&mut state);
        drop(state);
        drop(waker);
        self.help(help);
        polled
    }

    fn given(self: Arc<Self>, given: usize) {
        let mut state = self.state.lock();
        state.outstanding -= given;
        let help = self.call_for_help(&mut state);
        drop(state);
        self.help(help);
    }

    fn stop(&self) {
        let (source, runners) = {
            let mut state = self.state.lock();
            state.ended = true;
            state.stopped = true;
            let runners: Vec<_> = state
                .runners
                .iter_mut()
                .filter_map(|runner| runner.abort.take())
                .collect();
            (state.source.take(), runners)
        };
        for runner in runners {
            runner.abort();
        }
        drop_quietly(source);
    }
}
