//! Limits a group: at most `limit` of its tasks run at once.
//!
//! A task needs a place in its group to start. If the first queued task belongs to a full group, the pool sets it
//! aside, so that the tasks behind it can start. When a task of the group ends, its place goes to the first task set
//! aside, which becomes first in the queue again.
//!
//! ```text
//!  None --its turn comes back--> Reserved --start--> Running --end--> Over
//!    |                              `---cancel, expiry, eviction------^
//!    `-----------------start-----------^
//! ```
//! Invariant: while tasks are set aside, all `limit` places are taken, each by a task that is `Reserved` or `Running`.

use super::queue::AsideKey as Key;
// Not the models' mutex, which switches threads: this one is locked under the lock of the pool.
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// The limit of a group. See the [module](self).
pub(in crate::pool) struct GroupLimit(Mutex<Places>);

struct Places {
    limit: usize,
    taken: usize,
    /// The tasks set aside, in queue order. Tasks that have since left the queue remain listed.
    aside: VecDeque<Key>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    None,
    Reserved,
    Running,
    Over,
}

/// The membership of a task in a group with a limit. The task's queue entries and its worker share it.
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
    /// Returns true if the entry must wait for a place. An entry whose task has started through another entry need not
    /// wait: it leaves the queue.
    pub(super) fn must_wait(&self) -> bool {
        let places = self.group.0.lock();
        *self.place.lock() == Place::None && places.taken >= places.limit
    }

    pub(super) fn is_set_aside(&self, key: Key) {
        self.group.0.lock().aside.push_back(key);
    }

    /// Starts the task. The caller has checked that it may start.
    pub(super) fn start(&self) {
        let before = std::mem::replace(&mut *self.place.lock(), Place::Running);
        if before == Place::None {
            self.group.0.lock().taken += 1;
        }
    }

    /// Reserves for the task the place of a task that has ended. Returns false if the task was cancelled meanwhile.
    pub(super) fn reserve(&self) -> bool {
        let mut place = self.place.lock();
        let takes_it = *place == Place::None;
        if takes_it {
            *place = Place::Reserved;
        }
        takes_it
    }

    /// Ends the task, or keeps it from starting. Returns true if it gives a place back.
    pub(super) fn ends(&self) -> bool {
        let before = std::mem::replace(&mut *self.place.lock(), Place::Over);
        matches!(before, Place::Reserved | Place::Running)
    }

    /// Passes the freed place to the first task set aside that `restore` finds by its key, or frees the place.
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
