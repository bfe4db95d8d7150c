//! How threads are started: at once or later, as many as there should be.

use super::core::Core;
use super::hooks::forget_panic;
use super::state::{Phase, State};
use super::worker::{Bench, WorkerThread};
use crate::time::Sleep;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

impl<'j> Core<'j> {
    /// Starts a thread, if more are wanted and the rate of growth allows. It finds the rest of the work itself, and
    /// calls for the next.
    #[cold]
    pub(super) fn grow(self: &Arc<Self>) {
        let wants = |state: &mut State<'j>| {
            state.staying() < state.most
                && state.lanes.len() > 0
                && state.sleepers.is_empty()
                && state.searching == 0
                && state.phase != Phase::Stopped
                && (state.alive == 0 || self.has_free_slot(state))
        };
        if !wants(&mut self.lock()) {
            return;
        }
        if let Some(growth) = &self.settings.growth
            && let Err(refusal) = growth.try_acquire(1)
        {
            if let Some(after) = refusal.retry_after() {
                self.grow_later(after);
            }
            return;
        }
        let bench = {
            let mut state = self.lock();
            if !wants(&mut state) {
                return;
            }
            self.engage(&mut state, true)
        };
        let _ = self.start(bench);
    }

    /// Enters a thread that is about to be started into the books.
    pub(super) fn engage(&self, state: &mut State<'j>, searching: bool) -> Arc<Bench<'j>> {
        state.alive += 1;
        state.searching += usize::from(searching);
        state.stats.peak_threads = state.stats.peak_threads.max(state.alive);
        let bench = Arc::new(Bench::new(state.next_index, searching));
        state.next_index += 1;
        state.benches.push(Arc::clone(&bench));
        bench
    }

    pub(super) fn start(self: &Arc<Self>, bench: Arc<Bench<'j>>) -> io::Result<()> {
        let worker = WorkerThread::new(Arc::clone(self), bench);
        // The hook is a user's, and whoever starts a thread may have tasks in hand.
        let started = catch_unwind(AssertUnwindSafe(|| (self.settings.spawner)(worker)));
        let started = started.unwrap_or_else(|payload| {
            forget_panic(Err(payload));
            Err(io::Error::other("what starts threads has panicked"))
        });
        if started.is_err() {
            self.state.lock().stats.failed_starts += 1;
        }
        started
    }

    /// Starts the threads that are always there.
    pub(super) fn start_least(self: &Arc<Self>) -> io::Result<()> {
        loop {
            let bench = {
                let mut state = self.lock();
                if state.staying() >= state.least || state.phase != Phase::Running {
                    return Ok(());
                }
                self.engage(&mut state, false)
            };
            self.start(bench)?;
        }
    }

    pub(super) fn grow_later(self: &Arc<Self>, after: Duration) {
        // A pool whose tasks borrow has no such waker: there, submissions and workers try again.
        let Some(waker) = self.regrow_waker.get() else { return };
        self.lock().grows_later = true;
        let clock = &self.settings.clock;
        let mut regrow = self.regrow.lock();
        if regrow.is_some() {
            return;
        }
        let mut sleep = Box::pin(Sleep::of_no_runtime(clock, clock.after(clock.now(), after)));
        match sleep.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => *regrow = Some(sleep),
            Poll::Ready(()) => {
                drop(regrow);
                waker.wake_by_ref();
            }
        }
    }

    /// The timer has fired.
    pub(super) fn grow_now(self: &Arc<Self>) {
        let fired = self.regrow.lock().take();
        drop(fired);
        self.lock().grows_later = false;
        self.grow();
    }

    pub(super) fn resize(self: &Arc<Self>, least: usize, most: usize) -> io::Result<()> {
        {
            let mut state = self.lock();
            state.least = least;
            state.most = most;
            // What lies on shelves is within reach of those who are about to be started, too.
            let benches = state.benches.clone();
            for bench in benches {
                bench.shelf.lock().put_back(&mut state.lanes);
            }
        }
        if !seeded!("pool_quiet_resize") {
            self.call_everybody();
        }
        self.start_least()?;
        self.grow();
        Ok(())
    }

    /// Everybody looks again: whoever sleeps, and whoever waits for a slot.
    pub(super) fn call_everybody(self: &Arc<Self>) {
        let benches = {
            let mut state = self.lock();
            if state.phase == Phase::Stopped {
                // Nothing more is started: nobody need be told of a slot.
                state.slot_watch.end();
            }
            let sleepers = std::mem::take(&mut state.sleepers);
            state.searching += sleepers.len();
            for bench in &sleepers {
                bench.mark_called();
            }
            state.benches.clone()
        };
        for bench in benches {
            bench.unpark();
        }
    }
}
