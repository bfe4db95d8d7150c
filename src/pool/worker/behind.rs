//! A worker behind the gate: its task is admitted by the policy of the pool before it starts.
//!
//! The worker starts the task when it has both, a slot and the admission, and waits for neither with the other in hand: a
//! closed gate keeps no slot from those who share them, and a slot that is taken keeps nothing of the policy. Until it
//! starts, the task lies where whoever ends the pool, throws it out, or has seen it cancelled takes it out.

use super::Work;
use crate::ask::Ask;
use crate::pool::cell::Ran;
use crate::pool::gate::{Waiter, finish, poll_admitting};
use crate::pool::hooks::drop_quietly;
use crate::pool::lanes::Ranked;
use crate::pool::park::park;
use crate::pool::passage::Inside;
use std::task::{Context, Poll};

impl Work<'_, '_> {
    /// Runs the task that this worker holds, once it is admitted. Nothing is left of the place in line, nor of an
    /// admission that has not been seen, when the task is taken out.
    #[cold]
    pub(super) fn run_behind_gate(&mut self) {
        let Some(gate) = &self.core.settings.gate else { return };
        // Looked at after the task was taken: a limit that was lowered before a task was submitted holds for it.
        if !self.slot.may_keep() {
            return self.come_again();
        }
        let Some(ask) = self.ask() else { return };
        if seeded!("pool_takes_out_of_sight") {
            let held = self.bench.held.lock().take();
            *self.bench.held.lock() = held;
        }
        let waker = self.waker();
        let mut admitting = gate.admit(ask, Waiter::IDLE);
        let admitted = loop {
            match poll_admitting(&mut admitting, &mut Context::from_waker(&waker)) {
                Poll::Ready(admitted) => break admitted,
                Poll::Pending if self.slot.stays() => std::thread::yield_now(),
                Poll::Pending => self.wait_at_gate(),
            }
            if self.bench.held.lock().is_none() {
                return drop_quietly(admitting);
            }
            if !self.slot.try_hold_again() {
                drop_quietly(admitting);
                return self.come_again();
            }
        };
        drop_quietly(admitting);
        let held = self.bench.held.lock().take();
        // It was taken out: the admission is given back by its drop.
        let Some(entry) = held else {
            return finish(admitted.unwrap_or(None), Ran::Gone);
        };
        self.slot.note_start();
        self.core.room.give_back(1, u64::from(entry.weight()));
        match admitted {
            Ok(admitted) => {
                let inside = Inside::enter(self.core.kin, &admitted);
                let ran = self.start(entry);
                drop(inside);
                finish(admitted, ran);
            }
            Err(why) => {
                self.told.entries += 1;
                self.told.refused += u64::from(entry.refuse(why));
            }
        }
        self.bench.note_untold(self.told.entries);
    }

    /// What the task asks for. Nothing, where it is done with: it has been taken out, or has ended, or is too late.
    fn ask(&mut self) -> Option<Ask> {
        let mut held = self.bench.held.lock();
        let entry = held.as_ref()?;
        if entry.is_live() && !self.is_late(entry) {
            return Some(entry.ask());
        }
        let entry = held.take()?;
        drop(held);
        self.core.room.give_back(1, u64::from(entry.weight()));
        self.told.entries += 1;
        self.told.expired += u64::from(self.core.expire(entry));
        self.bench.note_untold(self.told.entries);
        None
    }

    /// Sleeps without the slot.
    fn wait_at_gate(&mut self) {
        if !seeded!("pool_waits_at_the_gate_with_its_slot") {
            self.slot.give_up();
        }
        park(None);
    }

    /// The slot is with somebody else: the task goes back to the front of the queue, and this worker waits for a slot.
    fn come_again(&mut self) {
        self.core.put_back_held(self.bench);
        self.slot.lose();
    }
}
