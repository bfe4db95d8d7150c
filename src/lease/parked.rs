//! The units that a thread has parked, by the number of the lease. Only the thread itself ever touches them.
//!
//! A few slots hold the units at hand; of the limiters that share a slot, the last one used is there. The others, and
//! the data for giving units back, are in a list. Slots and list are separate, so that a slot needs no check whether
//! the thread-local exists yet, or is ending. Slots exist from the start, are never dropped, and are empty once the
//! list is gone.

use super::Core;
use crate::core::limiter::Limiter;
use crate::core::ticket::Ticket;
use crate::sync::shim::thread_local;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The limiter to which parked units return.
pub(super) trait Origin: Send + Sync {
    /// Takes back `unspent` units of the lease whose ticket has these words. It may run user code.
    fn take_back(&self, words: &[u64], unspent: u64);
}

/// The latest lease of a thread, of one limiter.
struct LeaseEntry {
    id: u64,
    origin: Weak<dyn Origin>,
    words: Vec<u64>,
    /// The number of that lease. Units parked before are counted to it as well.
    lease: u64,
    /// The units that the lease took of the limiter.
    taken: u64,
    /// The parked units, while another limiter has the slot.
    aside: u64,
}

const SLOTS: usize = 8;

/// The number of a limiter, its parked units, and the number of the lease that they are counted to. Zero is no number.
///
/// Separate cells: to spend is to write the one that was read.
struct Slot {
    id: Cell<u64>,
    units: Cell<u64>,
    lease: Cell<u64>,
}

impl Slot {
    const fn empty() -> Self {
        Self {
            id: Cell::new(0),
            units: Cell::new(0),
            lease: Cell::new(0),
        }
    }

    fn get(&self) -> (u64, u64) {
        (self.id.get(), self.units.get())
    }

    fn set(&self, id: u64, units: u64, lease: u64) {
        self.id.set(id);
        self.units.set(units);
        self.lease.set(lease);
    }

    /// Spends `n` units of `id`, if they are here. Returns the number of their lease.
    #[inline(always)]
    fn spend(&self, id: u64, n: u64) -> Option<u64> {
        let units = self.units.get();
        let there = self.id.get() == id && n <= units;
        there.then(|| {
            self.units.set(units - n);
            self.lease.get()
        })
    }
}

/// The data for giving back a thread's parked units.
#[derive(Default)]
pub(super) struct Parked {
    entries: RefCell<Vec<LeaseEntry>>,
}

#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
thread_local! {
    static AT_HAND: [Slot; SLOTS] = const { [const { Slot::empty() }; SLOTS] };
}
// The models' macro knows no `const`.
#[cfg(any(tollgate_loom, tollgate_shuttle))]
thread_local! {
    static AT_HAND: [Slot; SLOTS] = [const { Slot::empty() }; SLOTS];
}

thread_local! {
    static PARKED: Parked = Parked::default();
}

/// Accesses the slot of `id`. `None` if the slots are gone.
#[inline(always)]
fn at_slot<R>(id: u64, look: impl FnOnce(&Slot) -> R) -> Option<R> {
    AT_HAND.try_with(|slots| look(&slots[id as usize % SLOTS])).ok()
}

impl Parked {
    /// Brings the units of `id` to hand, and returns their number.
    fn bring(&self, id: u64) -> u64 {
        let (other, units) = at_slot(id, Slot::get).unwrap_or((0, 0));
        if other == id {
            return units;
        }
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.iter_mut().find(|entry| entry.id == other) {
            entry.aside = units;
        }
        let entry = entries.iter_mut().find(|entry| entry.id == id);
        let (units, lease) = entry.map_or((0, 0), |entry| (std::mem::take(&mut entry.aside), entry.lease));
        Self::set(id, units, lease);
        units
    }

    /// Puts `units` of `id` at hand.
    fn set(id: u64, units: u64, lease: u64) {
        at_slot(id, |slot| slot.set(id, units, lease));
    }

    /// Spends `n` units of this thread, if they are at hand. Returns the number of their lease.
    #[inline(always)]
    pub(super) fn spend(id: u64, n: u64) -> Option<u64> {
        at_slot(id, |slot| slot.spend(id, n)).flatten()
    }

    /// The units that this thread has parked.
    pub(super) fn units(id: u64) -> u64 {
        PARKED.try_with(|parked| parked.bring(id)).unwrap_or(0)
    }

    /// Parks the rest of a lease of `taken` units, and of the units parked before, once `spent` units are spent.
    /// Returns the number of the lease; `None` if this thread is ending, or has spent the parked units meanwhile.
    pub(super) fn park<L: super::Prepaid + 'static>(
        id: u64,
        origin: &Arc<Core<L>>,
        ticket: &<L as Limiter>::Ticket,
        taken: u64,
        spent: u64,
    ) -> Option<u64> {
        // Relaxed: only uniqueness matters.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let parked = PARKED.try_with(|parked| {
            let left = (parked.bring(id) + taken).checked_sub(spent)?;
            let lease = NEXT.fetch_add(1, Ordering::Relaxed);
            {
                let mut entries = parked.entries.borrow_mut();
                let at = entries.iter().position(|entry| entry.id == id).unwrap_or_else(|| {
                    // At most one entry for each limiter that lives.
                    entries.retain(|entry| entry.origin.strong_count() > 0);
                    let origin: Weak<Core<L>> = Arc::downgrade(origin);
                    entries.push(LeaseEntry {
                        id,
                        origin,
                        words: vec![0; L::Ticket::WORDS],
                        lease: 0,
                        taken: 0,
                        aside: 0,
                    });
                    entries.len() - 1
                });
                ticket.write(&mut entries[at].words);
                (entries[at].taken, entries[at].lease) = (taken, lease);
            }
            Self::set(id, left, lease);
            Some(lease)
        });
        parked.ok().flatten()
    }

    /// Puts spent units of this lease back, if the thread still spends that lease. True if it does.
    pub(super) fn put_back(id: u64, units: u64, lease: u64) -> bool {
        // A thread that is ending cannot keep them.
        let put = PARKED.try_with(|parked| {
            let there = parked.bring(id);
            let same = at_slot(id, |slot| slot.lease.get()) == Some(lease) && lease > 0;
            if same {
                Self::set(id, there.saturating_add(units), lease);
            }
            same
        });
        put.unwrap_or(false)
    }

    /// Gives back all units that this thread has parked.
    pub(super) fn release(id: u64) {
        let gone = PARKED.try_with(|parked| {
            let unspent = parked.bring(id);
            Self::set(id, 0, 0);
            let mut entries = parked.entries.borrow_mut();
            let at = entries.iter().position(|entry| entry.id == id)?;
            Some((entries.swap_remove(at), unspent))
        });
        if let Ok(Some((entry, unspent))) = gone {
            entry.return_unspent(unspent);
        }
    }
}

impl LeaseEntry {
    /// Gives back the parked units, if the limiter still lives: at most as many as the last lease took.
    fn return_unspent(&self, unspent: u64) {
        let unspent = unspent.min(self.taken);
        if unspent > 0
            && let Some(origin) = self.origin.upgrade()
        {
            origin.take_back(&self.words, unspent);
        }
    }
}

/// The thread ends.
impl Drop for Parked {
    fn drop(&mut self) {
        let entries = std::mem::take(self.entries.get_mut());
        for entry in entries {
            // Taken before they are given back: user code that runs there finds nothing at hand.
            //
            let at_hand = at_slot(entry.id, |slot| {
                let (owner, units) = slot.get();
                (owner == entry.id).then(|| {
                    slot.set(0, 0, 0);
                    units
                })
            });
            entry.return_unspent(at_hand.flatten().unwrap_or(entry.aside));
        }
    }
}
