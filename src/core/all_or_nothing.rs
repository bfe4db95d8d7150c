//! The all-or-nothing loop over legs whose tickets share a buffer, and the buffers that do not fit into a ticket.
//!
//! Each leg is called whichever of the others panic: see [`unwind`](crate::sync::unwind).

use crate::core::ask::Demand;
use crate::core::limiter::{Outcome, Settlement};
use crate::core::refusal::Refusal;
use crate::sync::notify::together;
use crate::sync::shim::Mutex;
use crate::sync::unwind::each;
use crate::time::ClockReading;

/// Legs in order, each with its part of the words of a ticket.
pub(crate) trait AllOrNothing {
    type Leg;

    fn legs(&self) -> &[Self::Leg];

    /// Asks one leg. One that takes nothing remembers that in `words`.
    fn reserve_leg<'a>(&'a self, leg: &'a Self::Leg, demand: &Demand<'_>, words: &mut [u64])
    -> Result<(), Refusal<'a>>;
    fn cancel_leg(&self, leg: &Self::Leg, words: &[u64], now: &ClockReading);
    fn commit_leg(&self, leg: &Self::Leg, words: &mut [u64], now: &ClockReading);
    fn settle_leg(&self, leg: &Self::Leg, words: &mut [u64], actual: Settlement<'_>) -> u32;
    fn finish_leg(&self, leg: &Self::Leg, words: &[u64], outcome: Outcome, now: &ClockReading);
    fn forget_leg(&self, leg: &Self::Leg, words: &[u64]);

    /// Takes from each leg, or from none.
    #[inline(always)]
    fn reserve_all<'a>(&'a self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal<'a>> {
        let mut held = Held {
            whole: self,
            taken: 0,
            words,
            pass: demand.reading(),
        };
        for leg in self.legs() {
            if let Err(refusal) = self.reserve_leg(leg, demand, held.words) {
                // Given back once, also when a leg panics at that.
                let taken = std::mem::take(&mut held.taken);
                if taken > 0 {
                    held.give_back(taken);
                }
                std::mem::forget(held);
                return Err(refusal);
            }
            held.taken += 1;
        }
        std::mem::forget(held);
        Ok(())
    }

    fn cancel_all(&self, words: &[u64], now: &ClockReading) {
        together(|| each(self.legs().iter().rev(), |leg| self.cancel_leg(leg, words, now)));
    }

    fn commit_all(&self, words: &mut [u64], now: &ClockReading) {
        each(self.legs().iter(), |leg| self.commit_leg(leg, words, now));
    }

    fn settle_all(&self, words: &mut [u64], actual: Settlement<'_>) -> u32 {
        let mut corrected = 0;
        together(|| {
            each(self.legs().iter(), |leg| {
                corrected += self.settle_leg(leg, words, actual);
            });
        });
        corrected
    }

    fn finish_all(&self, words: &[u64], outcome: Outcome, now: &ClockReading) {
        together(|| {
            each(self.legs().iter().rev(), |leg| {
                self.finish_leg(leg, words, outcome, now);
            });
        });
    }

    fn forget_all(&self, words: &[u64]) {
        together(|| each(self.legs().iter().rev(), |leg| self.forget_leg(leg, words)));
    }
}

/// The tickets of the first legs, which are given back when a later leg panics.
struct Held<'a, W: AllOrNothing + ?Sized> {
    whole: &'a W,
    taken: usize,
    words: &'a mut [u64],
    pass: &'a ClockReading,
}

impl<W: AllOrNothing + ?Sized> Held<'_, W> {
    #[inline(never)]
    fn give_back(&self, taken: usize) {
        let taken = &self.whole.legs()[..taken];
        together(|| {
            each(taken.iter().rev(), |leg| {
                self.whole.cancel_leg(leg, self.words, self.pass);
            });
        });
    }
}

impl<W: AllOrNothing + ?Sized> Drop for Held<'_, W> {
    #[cold]
    fn drop(&mut self) {
        self.give_back(self.taken);
    }
}

/// Reusable buffers for the words of tickets that do not fit into a [`BoxTicket`](crate::BoxTicket), which holds the number of
/// its buffer.
#[derive(Debug)]
pub(crate) struct LongTickets {
    words: usize,
    buffers: Mutex<Buffers>,
}

#[derive(Debug, Default)]
struct Buffers {
    /// By number. Empty while one is being used, or when its number is free.
    out: Vec<Option<Box<[u64]>>>,
    free: Vec<u64>,
    spare: Vec<Box<[u64]>>,
}

impl Buffers {
    /// Spare buffers at most.
    const SPARE: usize = 64;

    fn keep(&mut self, buffer: Box<[u64]>) {
        if self.spare.len() < Self::SPARE {
            self.spare.push(buffer);
        }
    }

    /// The number of a buffer that stays out.
    fn put(&mut self, buffer: Box<[u64]>) -> u64 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.out.push(None);
            self.out.len() as u64 - 1
        });
        self.out[number as usize] = Some(buffer);
        number
    }
}

impl LongTickets {
    /// For tickets of `words`, unless they fit into `inline`.
    pub(crate) fn unless_fits(words: usize, inline: usize) -> Option<Box<Self>> {
        let long = || Self {
            words,
            buffers: Mutex::default(),
        };
        (words > inline).then(|| Box::new(long()))
    }

    /// Calls `fill` to write the words of a new ticket, whose own words are `inline`.
    #[cold]
    pub(crate) fn fill<E>(&self, inline: &mut [u64], fill: impl FnOnce(&mut [u64]) -> Result<(), E>) -> Result<(), E> {
        let spare = self.buffers.lock().spare.pop();
        let mut buffer = spare.unwrap_or_else(|| vec![0; self.words].into());
        buffer.fill(0);
        let filled = fill(&mut buffer);
        let mut buffers = self.buffers.lock();
        match filled {
            Ok(()) => inline[0] = buffers.put(buffer),
            Err(_) => buffers.keep(buffer),
        }
        filled
    }

    /// Calls `change` with the words of a ticket.
    #[cold]
    pub(crate) fn change<R: Default>(&self, inline: &[u64], change: impl FnOnce(&mut [u64]) -> R) -> R {
        let Some(buffer) = self.take(inline[0]) else {
            return R::default();
        };
        let mut lent = Lent {
            buffers: &self.buffers,
            number: inline[0],
            buffer,
        };
        change(&mut lent.buffer)
    }

    /// Calls `end` with the words of a ticket, and frees its buffer.
    #[cold]
    pub(crate) fn end(&self, inline: &[u64], end: impl FnOnce(&[u64])) {
        if let Some(buffer) = self.take(inline[0]) {
            self.buffers.lock().free.push(inline[0]);
            end(&buffer);
            self.buffers.lock().keep(buffer);
        }
    }

    /// Calls `look` with the words of a ticket, which stay as they are.
    #[cold]
    pub(crate) fn look(&self, inline: &[u64], look: impl FnOnce(&[u64])) {
        let words = self.buffers.lock().out.get(inline[0] as usize).cloned().flatten();
        if let Some(words) = words {
            look(&words);
        }
    }

    fn take(&self, number: u64) -> Option<Box<[u64]>> {
        self.buffers.lock().out.get_mut(number as usize)?.take()
    }
}

/// A buffer that goes back to its number, also on a panic.
struct Lent<'a> {
    buffers: &'a Mutex<Buffers>,
    number: u64,
    buffer: Box<[u64]>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.buffers.lock().out[self.number as usize] = Some(buffer);
    }
}
