//! One task that waits for others may run one of them itself, at a time: its turn says which.
//!
//! What is run in passing is polled where its handle is, and at the end of each poll of the task that took it in, once it
//! has been woken. So it goes on, on the slot of that task, whether its handle is polled again or not. A runner gets it,
//! by way of the queue, when the task that took it in has ended, or has let go of its handle; or when that task waits for
//! others, and no longer for this one. That is asked: while others wait for the turn, the handle's waker is woken at the
//! end of a poll, and a handle that is not seen in the next one is awaited no more. The answer is not asked about in turn,
//! unless somebody came to wait meanwhile: so each poll is followed by at most one more.
//!
//! A turn is used by whoever polls its task, or drops it, and so by one at a time. Wakers and handles may come from
//! anywhere: they leave a note, and wake.

use super::cell::Run;
use super::core::Core;
use crate::pool::hooks::wake;
use crate::sync::shim::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

#[derive(Default)]
pub(super) struct Turn(Mutex<State>);

#[derive(Default)]
struct State {
    helped: Option<Helped>,
    /// Its handle was polled in this poll of the task that has the turn.
    seen: bool,
    /// Its handle is to be polled in this poll, if it is awaited.
    asked: bool,
    /// Its handle is gone, or waits no more.
    loose: bool,
    /// How many have been run in passing: a handle that waits remembers in which round it came.
    round: u64,
    /// Handles that wait for their turn.
    waiting: Vec<Waker>,
    /// One of them has come in this poll.
    newcomer: bool,
    /// What is run in passing has been woken since it was last polled. Late wakers of others set it as well.
    due: bool,
    /// Wakes the task that has the turn, while it is not polled.
    owner: Option<Waker>,
}

struct Helped {
    task: Arc<dyn Run>,
    core: Arc<Core>,
}

/// What is left when a turn is free again, for after the lock.
struct Over {
    helped: Option<Helped>,
    waiting: Vec<Waker>,
    _owner: Option<Waker>,
}

impl State {
    fn is_helping<T: Run + ?Sized>(&self, task: &Arc<T>) -> bool {
        let here = |helped: &Helped| Arc::as_ptr(&helped.task).cast::<()>() == Arc::as_ptr(task).cast::<()>();
        self.helped.as_ref().is_some_and(here)
    }

    /// The turn is free, for those who wait.
    fn end(&mut self) -> Over {
        let round = self.round;
        let old = std::mem::take(self);
        self.round = round;
        Over {
            helped: old.helped,
            waiting: old.waiting,
            _owner: old.owner,
        }
    }
}

impl Turn {
    /// True when it is free. Otherwise `waker` is woken when it may be; `round` is that in which the caller came before.
    pub(super) fn is_free(&self, waker: &Waker, round: &mut u64) -> bool {
        if self.0.lock().loose {
            self.let_go();
        }
        let waker = waker.clone();
        let mut turn = self.0.lock();
        if turn.helped.is_none() {
            return true;
        }
        turn.newcomer |= std::mem::replace(round, turn.round) != turn.round;
        if !turn.waiting.iter().any(|known| known.will_wake(&waker)) {
            turn.waiting.push(waker);
        }
        false
    }

    /// Takes a claimed task in, into a turn that is free.
    pub(super) fn take_in(&self, task: Arc<dyn Run>, core: &Arc<Core>) {
        let mut turn = self.0.lock();
        debug_assert!(turn.helped.is_none(), "one at a time");
        turn.helped = Some(Helped {
            task,
            core: Arc::clone(core),
        });
        turn.round += 1;
        turn.due = true;
    }

    /// True while this task is run in passing here.
    pub(super) fn is_helping<T: Run + ?Sized>(&self, task: &Arc<T>) -> bool {
        self.0.lock().is_helping(task)
    }

    /// The handle of this task is polled by the task that has the turn. False when it is not run in passing here.
    pub(super) fn see<T: Run + ?Sized>(self: &Arc<Self>, task: &Arc<T>) -> bool {
        {
            let mut turn = self.0.lock();
            if !turn.is_helping(task) {
                return false;
            }
            (turn.seen, turn.loose) = (true, false);
        }
        self.go_on();
        true
    }

    /// The handle of this task waits no more.
    pub(super) fn loosen<T: Run + ?Sized>(&self, task: &Arc<T>) {
        let owner = {
            let mut turn = self.0.lock();
            if !turn.is_helping(task) {
                return;
            }
            turn.loose = true;
            turn.owner.take()
        };
        wake(owner);
    }

    /// Polls what is run in passing, if it has been woken.
    fn go_on(self: &Arc<Self>) {
        let (task, core) = {
            let mut turn = self.0.lock();
            if !std::mem::take(&mut turn.due) {
                return;
            }
            let Some(helped) = &turn.helped else { return };
            (Arc::clone(&helped.task), Arc::clone(&helped.core))
        };
        let waker = Waker::from(Arc::clone(self));
        if let Poll::Ready(ran) = core.poll(&*task, &mut Context::from_waker(&waker)) {
            let over = self.0.lock().end();
            core.ended(ran);
            drop(over.helped);
            wake_all(over.waiting);
        }
    }

    /// At the end of each poll of the task that has the turn, which is pending: `waker` is its own.
    pub(super) fn end_of_poll(self: &Arc<Self>, waker: &Waker) {
        let (seen, leaves, asked) = {
            let mut turn = self.0.lock();
            let Some(helped) = &turn.helped else { return };
            let task = Arc::clone(&helped.task);
            let seen = std::mem::take(&mut turn.seen);
            let leaves = turn.loose || (turn.asked && !seen);
            let asks = std::mem::take(&mut turn.newcomer) || !turn.asked;
            turn.asked = asks && !turn.waiting.is_empty() && !seeded!("tasks_never_ask");
            (seen, leaves, turn.asked.then_some(task))
        };
        if leaves {
            self.let_go();
            return;
        }
        if !seen {
            if seeded!("tasks_rest_unseen") {
                return;
            }
            self.go_on();
        }
        let waker = waker.clone();
        let (old, again) = {
            let mut turn = self.0.lock();
            if turn.helped.is_none() {
                return;
            }
            let old = turn.owner.replace(waker);
            // Whoever wakes it from now on finds this waker; who did before has left the note.
            let again = turn.due || asked.is_some();
            (old, if again { turn.owner.take() } else { None })
        };
        drop(old);
        if let Some(task) = asked {
            task.call();
        }
        wake(again);
    }

    /// A runner goes on with what is run in passing, or whoever waits for it.
    pub(super) fn let_go(&self) {
        let over = self.0.lock().end();
        if let Some(Helped { task, core }) = over.helped {
            core.push_left(&task);
            task.call();
        }
        wake_all(over.waiting);
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let owner = {
            let mut turn = self.0.lock();
            turn.due = true;
            turn.owner.take()
        };
        wake(owner);
    }
}

fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        wake(Some(waker));
    }
}

/// The turn of a task, with the task. What it runs in passing outlives it.
#[derive(Default)]
pub(super) struct OwnTurn(Arc<Turn>);

impl OwnTurn {
    pub(super) fn share(&self) -> Arc<Turn> {
        Arc::clone(&self.0)
    }
}

impl Drop for OwnTurn {
    fn drop(&mut self) {
        if !seeded!("tasks_end_with_the_turn") {
            self.0.let_go();
        }
    }
}
