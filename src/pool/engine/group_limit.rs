//! The limit of a group: at most `limit` of its tasks run at once.
//!
//! A task needs a place in its group to start. The pool sets a queued task aside when that is first in the queue and its group is
//! full, so that the tasks behind it can start. The place of a task that ends goes to the first task that was set aside, which is
//! first in the queue again then.
//!
//! ```text
//!  None --its turn comes back--> Reserved --start--> Running --end--> Over
//!    |                              `---cancel, expiry, eviction------^
//!    `-----------------start-----------^
//! ```
//! Invariant: while tasks are set aside, all `limit` places are taken, each by a task that is `Reserved` or `Running`.

use super::queue::Key;
// Not that of the models, which change threads there: it is used under the lock of the pool.
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the [module](self).
pub(in crate::pool) struct GroupLimit(Mutex<Places>);

struct Places {
    limit: usize,
    taken: usize,
    /// The tasks that were set aside, in the order of the queue. Those that have left the queue since are in it as well.
    aside: VecDeque<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    None,
    Reserved,
    Running,
    Over,
}

/// A task of a group with a limit, as its entries in the queue and its worker share it.
pub(in crate::pool) struct Membership {
    group: Arc<GroupLimit>,
    place: Mutex<Place>,
}

impl GroupLimit {
    pub(in crate::pool) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Places {
            limit,
            taken: 0,
            aside: VecDeque::new(),
        })))
    }

    pub(in crate::pool) fn member(self: &Arc<Self>) -> Arc<Membership> {
        Arc::new(Membership {
            group: Arc::clone(self),
            place: Mutex::new(Place::None),
        })
    }
}

impl Membership {
    /// True when the task may start, as far as its group goes.
    pub(in crate::pool) fn may_start(&self) -> bool {
        let places = self.group.0.lock();
        match *self.place.lock() {
            Place::None => places.taken < places.limit,
            Place::Reserved => true,
            Place::Running | Place::Over => false,
        }
    }

    /// True when its entry has to wait for a place. One whose task has started by another entry need not: it leaves the queue.
    pub(super) fn must_wait(&self) -> bool {
        let places = self.group.0.lock();
        *self.place.lock() == Place::None && places.taken >= places.limit
    }

    pub(super) fn is_set_aside(&self, key: Key) {
        self.group.0.lock().aside.push_back(key);
    }

    /// The task starts: it may.
    pub(super) fn start(&self) {
        let before = std::mem::replace(&mut *self.place.lock(), Place::Running);
        if before == Place::None {
            self.group.0.lock().taken += 1;
        }
    }

    /// It is first in the queue again, and has the place of a task that has ended. False when it was cancelled meanwhile.
    pub(super) fn reserve(&self) -> bool {
        let mut place = self.place.lock();
        let takes_it = *place == Place::None;
        if takes_it {
            *place = Place::Reserved;
        }
        takes_it
    }

    /// True while the task has a place, and has not started.
    pub(in crate::pool) fn is_reserved(&self) -> bool {
        *self.place.lock() == Place::Reserved
    }

    /// The task has ended: true when it gives its place back.
    pub(super) fn ends(&self) -> bool {
        let before = std::mem::replace(&mut *self.place.lock(), Place::Over);
        matches!(before, Place::Reserved | Place::Running)
    }

    /// An entry of the task has left the queue, and does not start: true when the task gives its place back.
    pub(super) fn leaves_queue(&self) -> bool {
        let is_running = *self.place.lock() == Place::Running && !seeded!("group_limit_counts_entries");
        !is_running && self.ends()
    }

    /// The place that was given back is free, or goes to the task that `restore` finds by its key.
    pub(super) fn pass_on(&self, mut restore: impl FnMut(Key) -> bool) {
        let mut places = self.group.0.lock();
        while let Some(next) = places.aside.pop_front() {
            if restore(next) {
                return;
            }
        }
        places.taken -= 1;
    }
}
