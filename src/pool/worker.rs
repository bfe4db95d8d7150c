//! A worker: gets a slot, takes a task, runs it, and again.

mod behind;

use super::cell::Ran;
use super::core::Core;
use super::entry::Entry;
use super::hooks::quietly;
use super::kin::Kin;
use super::lanes::Ranked;
use super::park::{Parker, park};
use super::shelf::Shelf;
use super::slot::Slot;
use super::state::{Found, Told};
use crate::semaphore::InTurn;
use crate::sync::shim::Mutex;
use crate::sync::shim::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::time::Sleep;
use std::cell::RefCell;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

/// How often a worker that has run out of work looks at the hint before it sleeps. A microsecond or so: less than it
/// takes to wake a thread.
const LOOKS: usize = if cfg!(any(tollgate_loom, tollgate_shuttle)) {
    0
} else {
    200
};

crate::sync::shim::thread_local! {
    /// The pools whose worker this thread is, innermost last.
    #[allow(clippy::missing_const_for_thread_local)] // The models' macro knows no `const`.
    static WORKS_FOR: RefCell<Vec<Kin>> = RefCell::new(Vec::new());
}

/// True when this thread is a worker of the pool.
pub(super) fn is_worker(core: &Core<'_>) -> bool {
    WORKS_FOR
        .try_with(|pools| pools.borrow().contains(&core.kin))
        .unwrap_or(false)
}

/// While it lives, this thread counts as a worker of the pool.
pub(super) struct Inside;

impl Inside {
    pub(super) fn enter(core: &Core<'_>) -> Self {
        let _ = WORKS_FOR.try_with(|pools| pools.borrow_mut().push(core.kin));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = WORKS_FOR.try_with(|pools| pools.borrow_mut().pop());
    }
}

/// What others see of a worker, which writes to it before and after each task: it lies apart.
#[repr(align(128))]
pub(super) struct Bench<'j> {
    index: usize,
    pub(super) starts_searching: bool,
    /// Tasks that it has taken and not started: everybody may take them from here.
    pub(super) shelf: Mutex<Shelf<'j>>,
    /// The task for which it waits at the gate.
    pub(super) held: Mutex<Option<Entry<'j>>>,
    asleep: AtomicBool,
    /// What it has ended since it last told. Written by itself; set to zero under the pool's lock.
    untold: AtomicUsize,
    pub(super) parker: OnceLock<Arc<Parker>>,
}

impl Bench<'_> {
    pub(super) fn new(index: usize, starts_searching: bool) -> Self {
        Self {
            index,
            starts_searching,
            shelf: Mutex::new(Shelf::default()),
            held: Mutex::new(None),
            asleep: AtomicBool::new(false),
            untold: AtomicUsize::new(0),
            parker: OnceLock::new(),
        }
    }

    pub(super) fn sleep(&self) {
        // Relaxed, both: written under the pool's lock, and the parking orders what follows.
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// Relaxed, here and below: a count that is added to others. It is no greater than what the pool counts as
    /// unfinished, as only its worker lets it grow, and only under the pool's lock does it shrink.
    pub(super) fn untold(&self) -> usize {
        self.untold.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn note_untold(&self, entries: usize) {
        self.untold.store(entries, Ordering::Relaxed);
    }

    pub(super) fn mark_called(&self) {
        // Release: whatever was queued before the call is seen by whoever wakes. Pairs with the load in `is_called`.
        self.asleep.store(false, Ordering::Release);
    }

    fn is_called(&self) -> bool {
        // Acquire: pairs with the store in `mark_called`.
        !self.asleep.load(Ordering::Acquire)
    }
}

/// A worker that is to be run on a thread of its own: what the hook of
/// [`PoolBuilder::spawn_with`](super::PoolBuilder::spawn_with) is given. Dropping it without a run is the same as
/// failing to start the thread.
#[must_use = "a worker works while it is run"]
pub struct WorkerThread<'j> {
    core: Arc<Core<'j>>,
    bench: Arc<Bench<'j>>,
    ran: bool,
}

impl<'j> WorkerThread<'j> {
    pub(super) fn new(core: Arc<Core<'j>>, bench: Arc<Bench<'j>>) -> Self {
        Self {
            core,
            bench,
            ran: false,
        }
    }

    /// Counts the workers of one pool from zero; a number is not given again.
    pub fn index(&self) -> usize {
        self.bench.index
    }

    /// Works until the pool needs this worker no more.
    pub fn run(mut self) {
        self.ran = true;
        let inside = Inside::enter(&self.core);
        let _ = self.bench.parker.set(Parker::current());
        if let Some(hook) = &self.core.settings.on_start {
            quietly(|| hook());
        }
        Work::new(&self.core, &self.bench).work();
        drop(inside);
    }
}

impl Drop for WorkerThread<'_> {
    fn drop(&mut self) {
        if !self.ran {
            self.core.never_started(&self.bench);
        }
    }
}

impl fmt::Debug for WorkerThread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerThread")
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}

/// The loop of a worker, and what it keeps between two tasks.
struct Work<'a, 'j> {
    core: &'a Arc<Core<'j>>,
    bench: &'a Arc<Bench<'j>>,
    slot: Slot<'a>,
    searching: bool,
    told: Told<'j>,
}

impl<'a, 'j> Work<'a, 'j> {
    fn new(core: &'a Arc<Core<'j>>, bench: &'a Arc<Bench<'j>>) -> Self {
        Self {
            core,
            bench,
            slot: Slot::none_of(&core.settings.slots, core.settings.shared_slots),
            // One that was started for new work looks for it on behalf of whoever started it.
            searching: bench.starts_searching,
            told: Told::default(),
        }
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(self.bench.parker.get_or_init(Parker::current)))
    }

    fn work(mut self) {
        loop {
            if !self.slot.is_held() && !self.wait_for_slot() {
                break;
            }
            // What lies on the shelf comes first.
            match self.shelved() {
                Some(entry) => self.run_shelved(entry),
                None => match self.core.take(self.bench, &mut self.searching, &mut self.told) {
                    Found::Entry(entry) => self.run_with_slot(entry),
                    Found::Held => self.run_behind_gate(),
                    Found::Exit => break,
                    Found::Nothing if self.rest() => {}
                    Found::Nothing => break,
                },
            }
        }
        self.slot.give_up();
        self.core.left(self.bench, self.searching, &mut self.told);
    }

    /// The next task from the shelf. Nothing when the slot has to go: then the shelf has been emptied.
    #[inline]
    fn shelved(&mut self) -> Option<Entry<'j>> {
        // Looked at after the tasks were taken: a limit that was lowered before a task was submitted holds for it.
        if !self.slot.may_keep() {
            self.core.unshelve(self.bench);
            return None;
        }
        let mut shelf = self.bench.shelf.lock();
        let entry = shelf.start_next()?;
        if self.core.room.is_pressed() {
            let owed = shelf.owed();
            drop(shelf);
            self.core.room.give_back(owed, 0);
        }
        Some(entry)
    }

    #[inline]
    fn run_shelved(&mut self, entry: Entry<'j>) {
        self.slot.note_start();
        self.core.room.give_back_weight(1);
        self.run_common(entry);
        self.bench.note_untold(self.told.entries);
    }

    #[inline]
    fn run_common(&mut self, entry: Entry<'j>) -> Ran {
        let (ran, left) = entry.run_and_leave(&mut |payload| self.core.orphan(payload));
        self.told.count(ran);
        if let Some(left) = left {
            self.told.spent.add(left);
        }
        ran
    }

    /// Runs a task, unless the slot has to go: then the task goes back.
    #[inline]
    fn run_with_slot(&mut self, entry: Entry<'j>) {
        // Looked at after the task was taken: a limit that was lowered before a task was submitted holds for it.
        if self.slot.may_keep() {
            self.run(entry);
        } else {
            match self.core.put_back(self.bench, entry) {
                // The pool has been stopped, and this is one of the tasks that had started.
                Some(entry) => self.run(entry),
                None => {
                    self.slot.give_up();
                    return;
                }
            }
        }
        self.bench.note_untold(self.told.entries);
    }

    /// Gets a slot. False when this worker is to end instead.
    #[cold]
    fn wait_for_slot(&mut self) -> bool {
        let core = self.core;
        if self.slot.try_hold() {
            return true;
        }
        let waker = self.waker();
        let mut acquire = pin!(InTurn::at(&*core.settings.slots));
        loop {
            match acquire.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(slot)) => {
                    self.slot.hold(slot);
                    return true;
                }
                // Whoever closes the slots ends the pool.
                Poll::Ready(None) => {
                    core.slots_closed();
                    return false;
                }
                Poll::Pending if core.should_exit() => return false,
                Poll::Pending => park(None),
            }
        }
    }

    /// There is nothing to do: looks again for a moment, then sleeps. False when this worker is no longer needed.
    fn rest(&mut self) -> bool {
        if self.searching {
            for _ in 0..LOOKS {
                if self.core.seems_busy() {
                    return true;
                }
                std::hint::spin_loop();
            }
        }
        if !self.core.fall_asleep(self.bench, &mut self.searching) {
            return true;
        }
        if !seeded!("pool_sleeps_on_its_slot") {
            self.slot.give_up();
        }
        if !self.sleep() {
            return false;
        }
        // Whoever called has counted this worker among those that look.
        self.searching = true;
        true
    }

    /// Sleeps until called; false when it has slept too long.
    fn sleep(&self) -> bool {
        let settings = &self.core.settings;
        let clock = &settings.clock;
        let until = clock.after(clock.now(), settings.keep_alive);
        let waker = self.waker();
        let mut timer = None;
        while !self.bench.is_called() {
            let now = clock.now();
            if now >= until {
                if self.core.may_leave(self.bench) {
                    return false;
                }
                // It belongs to those who stay, until it is called.
                if !self.bench.is_called() {
                    park(None);
                }
            } else if clock.is_manual() {
                let timer = timer.get_or_insert_with(|| Sleep::until(clock, until));
                if Pin::new(timer).poll(&mut Context::from_waker(&waker)).is_pending() && !self.bench.is_called() {
                    park(None);
                }
            } else {
                park(Some(clock.between(now, until)));
            }
        }
        true
    }

    #[inline]
    fn run(&mut self, entry: Entry<'j>) {
        self.slot.note_start();
        self.core.room.give_back(1, u64::from(entry.weight()));
        self.start(entry);
    }

    /// The task has left the queue: it runs, unless it is too late.
    #[inline]
    fn start(&mut self, entry: Entry<'j>) -> Ran {
        if entry.is_common() {
            return self.run_common(entry);
        }
        if self.is_late(&entry) {
            self.told.entries += 1;
            self.told.expired += u64::from(self.core.expire(entry));
            return Ran::Gone;
        }
        let ran = entry.run(|payload| self.core.orphan(payload));
        self.told.count(ran);
        ran
    }

    fn is_late(&self, entry: &Entry<'j>) -> bool {
        let deadline = entry.deadline();
        deadline.is_some_and(|deadline| self.core.settings.clock.now() > deadline)
    }
}
