//! The pool's lock, held: at first what was submitted is entered, at last what follows from the changes is done.
//!
//! A submission that finds a worker looking for work calls nobody, and touches nothing here. Whether it is to call stands
//! in the inbox: true while nobody looks and somebody could be called. It is written here, when the lock is about to go:
//!
//! - S1. A submission puts its task into the inbox and reads `calls`, under the inbox's lock.
//! - S2. If that was true it takes the pool's lock, finds its task in the lanes, and calls.
//! - W1. A worker that falls asleep, or finds work and looks no more, writes `calls` under the inbox's lock.
//! - W2. If it writes true and finds tasks there, it enters them and calls, in the place of those who submitted them.
//!
//! Either S1 comes before W1: then W2 finds the task, unless it had been entered before; then the worker has seen it in the
//! lanes under the same lock. Or W1 comes before S1: then S2 calls. A worker that is awake and looks takes the pool's lock
//! once more before it sleeps.

use super::core::Core;
use super::state::{After, State};
use crate::sync::shim::MutexGuard;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

pub(super) struct Locked<'a, 'j> {
    core: &'a Arc<Core<'j>>,
    /// There until it is dropped.
    state: Option<MutexGuard<'a, State<'j>>>,
}

impl<'j> Core<'j> {
    #[inline]
    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_, 'j> {
        let mut state = self.state.lock();
        let mut tray = self.inbox.lock();
        state.enter(&self.inbox, &mut tray);
        drop(tray);
        Locked {
            core: self,
            state: Some(state),
        }
    }

    /// For whoever has put a task into the inbox, and is to call.
    #[cold]
    pub(super) fn call(self: &Arc<Self>) {
        self.lock().call_for_help();
    }
}

impl<'j> Deref for Locked<'_, 'j> {
    type Target = State<'j>;
    #[inline]
    fn deref(&self) -> &State<'j> {
        self.state.as_deref().expect("it is dropped last")
    }
}

impl<'j> DerefMut for Locked<'_, 'j> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State<'j> {
        self.state.as_deref_mut().expect("it is dropped last")
    }
}

impl Drop for Locked<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let calls = state.wants_call();
        if calls != state.calls {
            let mut tray = self.core.inbox.lock();
            if calls && !tray.is_empty() && !seeded!("pool_calls_blindly") {
                state.enter(&self.core.inbox, &mut tray);
                state.call_for_help();
            }
            state.calls = state.wants_call();
            tray.calls = state.calls;
        }
        self.core.note_pending(&state);
        let after = std::mem::take(&mut state.after);
        drop(state);
        self.core.after(after);
    }
}

/// What must be done after the lock.
impl<'j> Core<'j> {
    #[inline]
    fn after(self: &Arc<Self>, after: After<'j>) {
        if let Some(bench) = after.wake {
            bench.call();
        }
        for waker in after.quiet {
            super::hooks::wake(Some(waker));
        }
        if after.grow {
            self.grow();
        }
    }
}
