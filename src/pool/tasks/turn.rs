//! Which tasks are being polled on this thread, and how one that waits for another runs it meanwhile.

use crate::pool::hooks::wake;
use crate::pool::kin::{Kin, Standing};
use crate::sync::shim::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use std::task::Waker;

/// One task that waits for others may run one of them itself, at a time.
#[derive(Default)]
pub(super) struct Turn(Mutex<(bool, Vec<Waker>)>);

impl Turn {
    /// True when it is the caller's; `waker` is woken otherwise when it is free.
    pub(super) fn take(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut turn = self.0.lock();
        if turn.0 {
            if !turn.1.iter().any(|known| known.will_wake(&waker)) {
                turn.1.push(waker);
            }
            return false;
        }
        turn.0 = true;
        true
    }

    pub(super) fn give_back(&self) {
        let waiting = {
            let mut turn = self.0.lock();
            turn.0 = false;
            std::mem::take(&mut turn.1)
        };
        for waker in waiting {
            wake(Some(waker));
        }
    }
}

struct Polled {
    pool: Kin,
    /// Made when somebody asks for it.
    turn: Option<Arc<Turn>>,
}

crate::sync::shim::thread_local! {
    /// The tasks that are being polled on this thread, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static POLLED: RefCell<Vec<Polled>> = RefCell::new(Vec::new());
}

/// The turn of the innermost task of the family of `pool` that is being polled on this thread.
pub(super) fn turn_of(pool: Kin) -> Option<Arc<Turn>> {
    let look = |polled: &RefCell<Vec<Polled>>| {
        let mut polled = polled.borrow_mut();
        let innermost = polled.iter_mut().rev().find(|task| task.pool.is_relative(pool));
        innermost.map(|task| Arc::clone(task.turn.get_or_insert_default()))
    };
    POLLED.try_with(look).ok().flatten()
}

/// How the task that is being polled on this thread stands to `pool`.
pub(super) fn standing(pool: Kin) -> Standing {
    let look = |polled: &RefCell<Vec<Polled>>| pool.seen_from(polled.borrow().iter().map(|task| task.pool));
    POLLED.try_with(look).unwrap_or(Standing::Stranger)
}

/// Polls a task of `pool`, whose turn is this. `poll` does not panic.
pub(super) fn inside<R>(pool: Kin, turn: &mut Option<Arc<Turn>>, poll: impl FnOnce() -> R) -> R {
    let mine = turn.take();
    let _ = POLLED.try_with(|polled| polled.borrow_mut().push(Polled { pool, turn: mine }));
    let polled = poll();
    let me = POLLED.try_with(|polled| polled.borrow_mut().pop());
    *turn = me.ok().flatten().and_then(|me| me.turn);
    polled
}
