//! A list of limiters as one limiter, all or nothing: legs that are known at run time.

use crate::core::ask::Demand;
use crate::core::limiter::{Limiter, Outcome, Settlement};
use crate::core::refusal::Refusal;
use crate::core::status::Description;
use crate::core::ticket::{BoxTicket, Ticket};
use crate::core::tuple::{look_at_all, look_at_rest};
use crate::sync::shim::Mutex;
use crate::sync::unwind::each;
use crate::sync::wait_queue::{Place, Watch};
use crate::sync::wake::Deferred;
use std::fmt;
use std::ops::Range;
use std::sync::Weak;

/// A limiter behind a pointer: its tickets are words of the caller.
pub(crate) trait Erased: Send + Sync {
    fn reserve(&self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal>;
    fn cancel(&self, words: &[u64]);
    fn finish(&self, words: &[u64], outcome: Outcome);
    fn settle(&self, words: &mut [u64], settlement: &Settlement) -> u32;
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal>;
    fn leave(&self, place: &Place);
    fn watch(&self, watcher: &Weak<dyn Watch>);
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>));
}

impl<L: Limiter> Erased for L {
    fn reserve(&self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal> {
        self.try_reserve(demand)?.write(words);
        Ok(())
    }
    fn cancel(&self, words: &[u64]) {
        Limiter::cancel(self, L::Ticket::read(words));
    }
    fn finish(&self, words: &[u64], outcome: Outcome) {
        Limiter::finish(self, L::Ticket::read(words), outcome);
    }
    fn settle(&self, words: &mut [u64], settlement: &Settlement) -> u32 {
        let mut ticket = Written {
            ticket: L::Ticket::read(words),
            words,
        };
        Limiter::settle(self, &mut ticket.ticket, settlement)
    }
    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        Limiter::look(self, demand)
    }
    fn leave(&self, place: &Place) {
        Limiter::leave(self, place);
    }
    fn watch(&self, watcher: &Weak<dyn Watch>) {
        Limiter::watch(self, watcher);
    }
    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        Limiter::describe(self, visit);
    }
}

/// A ticket that is written back when this is dropped: also when the limiter panics after it has changed it.
struct Written<'a, T: Ticket> {
    ticket: T,
    words: &'a mut [u64],
}

impl<T: Ticket> Drop for Written<'_, T> {
    fn drop(&mut self) {
        self.ticket.write(self.words);
    }
}

/// A list of boxed limiters as one limiter: all or nothing, asked in their order. A list without a leg admits everything.
///
/// Tickets of up to [`BoxTicket::WORDS_INLINE`] words in all are kept in the permit. For longer ones the list keeps a buffer on the heap
/// for each permit that is out, and uses it again.
///
/// ```
/// # use tollgate::{Legs, LimiterExt, Quota, Semaphore, TokenBucket};
/// let mut legs = Legs::new();
/// for (name, limit) in [("rate", 2), ("in flight", 9)] {
///     legs = match name {
///         "rate" => legs.and(TokenBucket::new(Quota::per_minute(limit)).named(name)),
///         _ => legs.and(Semaphore::new(limit as usize).named(name)),
///     };
/// }
/// let permits = [legs.try_admit(1), legs.try_admit(1)].map(Result::unwrap);
/// assert_eq!(legs.try_admit(1).unwrap_err().leg(), "rate");
/// # drop(permits);
/// ```
#[derive(Default)]
pub struct Legs {
    legs: Vec<Boxed>,
    words: usize,
    buffers: Mutex<Buffers>,
}

struct Boxed {
    limiter: Box<dyn Erased>,
    words: Range<usize>,
}

/// The words of long tickets, by number.
#[derive(Default)]
struct Buffers {
    words: Vec<Box<[u64]>>,
    /// The numbers that no ticket has.
    free: Vec<usize>,
}

/// A buffer in use. It goes back under its number when this is dropped, and is free then unless a ticket has the number.
struct Buffer<'a> {
    buffers: &'a Mutex<Buffers>,
    number: usize,
    words: Box<[u64]>,
    is_free: bool,
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let mut buffers = self.buffers.lock();
        buffers.words[self.number] = std::mem::take(&mut self.words);
        if self.is_free {
            buffers.free.push(self.number);
        }
    }
}

/// A list of one: any limiter behind one type.
pub type BoxLimiter = Legs;

impl Legs {
    /// A list without a leg.
    pub fn new() -> Self {
        Self::default()
    }

    /// The list with one more leg, which is asked last.
    #[must_use]
    pub fn and<L: Limiter + 'static>(mut self, leg: L) -> Self {
        self.push(leg);
        self
    }

    /// Adds a leg, which is asked last.
    pub fn push<L: Limiter + 'static>(&mut self, leg: L) {
        let from = self.words;
        self.words += L::Ticket::WORDS;
        self.legs.push(Boxed {
            limiter: Box::new(leg),
            words: from..self.words,
        });
    }

    fn is_long(&self) -> bool {
        self.words > BoxTicket::WORDS_INLINE
    }

    fn erased(&self) -> Vec<&dyn Erased> {
        self.legs.iter().map(|leg| &*leg.limiter).collect()
    }

    fn reserve_all(&self, demand: &Demand<'_>, words: &mut [u64]) -> Result<(), Refusal> {
        // Dropped after `taken`: what that gives back is one change.
        let mut deferred = Deferred::new();
        let mut taken = Taken {
            legs: &self.legs,
            count: 0,
            words,
        };
        for leg in &self.legs {
            if let Err(refusal) = leg.limiter.reserve(demand, &mut taken.words[leg.words.clone()]) {
                let rest = &self.legs[taken.count + 1..];
                if taken.count > 0 {
                    deferred.begin();
                }
                drop(taken);
                let rest = look_at_rest(rest.iter().map(|leg| &*leg.limiter), demand);
                return Err(rest.map_or(refusal, |rest| refusal.and(rest)));
            }
            taken.count += 1;
        }
        taken.count = 0;
        Ok(())
    }

    fn end(&self, words: &[u64], outcome: Option<Outcome>) {
        let mut deferred = Deferred::new();
        if outcome.is_none() {
            deferred.begin();
        }
        each(self.legs.iter().rev(), |leg| {
            let words = &words[leg.words.clone()];
            match outcome {
                None => leg.limiter.cancel(words),
                Some(outcome) => leg.limiter.finish(words, outcome),
            }
        });
    }

    /// A buffer that no ticket has.
    fn new_buffer(&self) -> Buffer<'_> {
        let mut buffers = self.buffers.lock();
        let number = buffers.free.pop().unwrap_or(buffers.words.len());
        if number == buffers.words.len() {
            buffers.words.push(Box::default());
        }
        let mut words = std::mem::take(&mut buffers.words[number]);
        drop(buffers);
        if words.is_empty() {
            words = vec![0; self.words].into_boxed_slice();
        }
        Buffer {
            buffers: &self.buffers,
            number,
            words,
            is_free: true,
        }
    }

    /// The buffer of `ticket`, which ends with it or keeps it.
    fn buffer(&self, ticket: &BoxTicket, ends: bool) -> Buffer<'_> {
        let number = ticket.0[0] as usize;
        Buffer {
            buffers: &self.buffers,
            number,
            words: std::mem::take(&mut self.buffers.lock().words[number]),
            is_free: ends,
        }
    }
}

/// The legs of all lists, in their order: [`boxed`](crate::LimiterExt::boxed) makes a list of one.
impl FromIterator<Self> for Legs {
    fn from_iter<I: IntoIterator<Item = Self>>(lists: I) -> Self {
        let mut all = Self::new();
        for Boxed { limiter, words } in lists.into_iter().flat_map(|list| list.legs) {
            let from = all.words;
            all.words += words.len();
            let words = from..all.words;
            all.legs.push(Boxed { limiter, words });
        }
        all
    }
}

/// The first legs, which have taken: they are cancelled when this is dropped, the latest first.
struct Taken<'a> {
    legs: &'a [Boxed],
    count: usize,
    words: &'a mut [u64],
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            let taken = self.legs[..self.count].iter().rev();
            each(taken, |leg| leg.limiter.cancel(&self.words[leg.words.clone()]));
        }
    }
}

impl Limiter for Legs {
    type Ticket = BoxTicket;

    #[inline] // row: from a file, boxed
    fn try_reserve(&self, demand: &Demand<'_>) -> Result<BoxTicket, Refusal> {
        if self.is_long() {
            let mut buffer = self.new_buffer();
            self.reserve_all(demand, &mut buffer.words)?;
            buffer.is_free = false;
            let mut ticket = BoxTicket::EMPTY;
            ticket.0[0] = buffer.number as u64;
            return Ok(ticket);
        }
        let mut ticket = BoxTicket::EMPTY;
        self.reserve_all(demand, &mut ticket.0)?;
        Ok(ticket)
    }

    fn cancel(&self, ticket: BoxTicket) {
        match self.is_long() {
            true => self.end(&self.buffer(&ticket, true).words, None),
            false => self.end(&ticket.0, None),
        }
    }

    #[inline] // row: from a file, boxed
    fn finish(&self, ticket: BoxTicket, outcome: Outcome) {
        match self.is_long() {
            true => self.end(&self.buffer(&ticket, true).words, Some(outcome)),
            false => self.end(&ticket.0, Some(outcome)),
        }
    }

    fn settle(&self, ticket: &mut BoxTicket, settlement: &Settlement) -> u32 {
        let mut deferred = Deferred::new();
        deferred.begin();
        let mut corrected = 0;
        let mut settle = |words: &mut [u64]| {
            each(self.legs.iter(), |leg| {
                corrected += leg.limiter.settle(&mut words[leg.words.clone()], settlement);
            });
        };
        if self.is_long() {
            settle(&mut self.buffer(ticket, false).words);
        } else {
            settle(&mut ticket.0);
        }
        corrected
    }

    fn look(&self, demand: &Demand<'_>) -> Result<(), Refusal> {
        look_at_all(&self.erased(), demand)
    }

    fn leave(&self, place: &Place) {
        each(self.legs.iter(), |leg| leg.limiter.leave(place));
    }

    fn watch(&self, watcher: &Weak<dyn Watch>) {
        self.legs.iter().for_each(|leg| leg.limiter.watch(watcher));
    }

    fn describe(&self, visit: &mut dyn FnMut(Description<'_>)) {
        self.legs.iter().for_each(|leg| leg.limiter.describe(visit));
    }
}

impl fmt::Debug for Legs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Legs").field("len", &self.legs.len()).finish()
    }
}
