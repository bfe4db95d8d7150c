//! The queue of a policy as plain data: its waiters, and the transitions under its lock.

use super::order::{Classes, Eviction, Order};
use crate::core::ask::Ask;
use crate::core::refusal::Refusal;
use crate::time::Instant;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

/// A waiter: its class, and a number that ascends over all policies. The order of the keys is that of arrival in each class.
pub(super) type Key = (u64, u64);

pub(super) struct Waiter {
    pub(super) ask: Ask,
    pub(super) since: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) waker: Option<Waker>,
}

/// The end of a wait, until its owner looks.
pub(super) enum End<T> {
    Admitted(T),
    Refused(Refusal),
    /// Its deadline has come.
    Expired,
    Evicted,
    Panicked(Box<dyn Any + Send>),
}

pub(super) struct Queue<T> {
    classes: Classes,
    waiters: BTreeMap<Key, Waiter>,
    ended: BTreeMap<u64, End<T>>,
    deadlines: BTreeSet<(Instant, Key)>,
    /// A thread drives.
    pub(super) driving: bool,
    /// Something has happened since the thread that drives looked last.
    pub(super) again: bool,
    /// A limit, a quota or a condition has changed.
    pub(super) changed: bool,
    /// How often that has happened.
    pub(super) changes: u64,
    /// The instant as of which the latest head was admitted.
    pub(super) as_of: Instant,
    /// When the owner of an admission has taken it up late.
    pub(super) taken_up: Instant,
}

impl<T> Queue<T> {
    pub(super) fn new(order: Order) -> Self {
        Self {
            classes: Classes::new(order),
            waiters: BTreeMap::new(),
            ended: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            driving: false,
            again: false,
            changed: false,
            changes: 0,
            as_of: Instant::ZERO,
            taken_up: Instant::ZERO,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// The sum of the waiters that are served before a newcomer with `ask`.
    pub(super) fn ahead(&self, ask: &Ask) -> Ask {
        self.classes.ahead(self.classes.order().class_of(ask))
    }

    pub(super) fn key_of(&self, arrival: u64, ask: &Ask) -> Key {
        (self.classes.order().class_of(ask), arrival)
    }

    /// The waiter that is served next.
    pub(super) fn head(&self) -> Option<(Key, &Waiter)> {
        let class = self.classes.next()?;
        let mut of_class = self.waiters.range((class, 0)..=(class, u64::MAX));
        let head = match self.classes.order() {
            Order::Lifo => of_class.next_back(),
            _ => of_class.next(),
        };
        head.map(|(&key, waiter)| (key, waiter))
    }

    pub(super) fn is_head(&self, key: Key) -> bool {
        self.head().is_some_and(|(head, _)| head == key)
    }

    /// The first deadline, and whose it is.
    pub(super) fn first_deadline(&self) -> Option<(Instant, Key)> {
        self.deadlines.first().copied()
    }

    pub(super) fn push(&mut self, key: Key, waiter: Waiter) {
        self.classes.join(key.0, &waiter.ask);
        if let Some(deadline) = waiter.deadline {
            self.deadlines.insert((deadline, key));
        }
        self.waiters.insert(key, waiter);
    }

    /// Takes a waiter out.
    pub(super) fn remove(&mut self, key: Key) -> Option<Waiter> {
        let waiter = self.waiters.remove(&key)?;
        self.classes.leave(key.0, &waiter.ask);
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        Some(waiter)
    }

    /// Ends a wait, and returns the waker of its owner. Gives `end` back if the owner has left.
    pub(super) fn end(&mut self, key: Key, end: End<T>) -> Result<Option<Waker>, End<T>> {
        if let (End::Admitted(_), Some(waiter)) = (&end, self.waiters.get(&key)) {
            self.classes.served(key.0, &waiter.ask);
        }
        let Some(waiter) = self.remove(key) else {
            return Err(end);
        };
        self.ended.insert(key.1, end);
        Ok(waiter.waker)
    }

    pub(super) fn take_end(&mut self, key: Key) -> Option<End<T>> {
        self.ended.remove(&key.1)
    }

    /// The waker of a waiter, if it waits.
    pub(super) fn waker(&mut self, key: Key) -> Option<&mut Option<Waker>> {
        self.waiters.get_mut(&key).map(|waiter| &mut waiter.waker)
    }

    /// The waiter that goes for a newcomer with `ask` when the queue is full.
    pub(super) fn evicts_for(&self, ask: &Ask, eviction: Eviction) -> Option<Key> {
        let class = match eviction {
            Eviction::Never => None,
            Eviction::Oldest => self.classes.evicts_for(self.classes.order().class_of(ask)),
        }?;
        let mut of_class = self.waiters.range((class, 0)..=(class, u64::MAX));
        of_class.next().map(|(&key, _)| key)
    }

    /// All waiters in the order in which each class is judged: each behind those before it in its class.
    pub(super) fn in_order(&self) -> Vec<(Key, Ask, Option<Instant>)> {
        let view = |(&key, waiter): (&Key, &Waiter)| (key, waiter.ask, waiter.deadline);
        self.waiters.iter().map(view).collect()
    }
}
