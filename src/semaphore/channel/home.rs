//! Where tokens come from and go back to: the channel, the books, and one lock for everything but taking.
//!
//! A free token is a message in the channel. Taking one is receiving it, which needs no lock and can be done by anybody
//! who has the receiver, also from within a `select!` that knows nothing of semaphores. So the protocol may not count
//! what is taken: it counts what exists, and what is free is the channel's length.
//!
//! - **T** (take): receive. `n` at once: under the lock, one after the other, and if one is missing all go back.
//! - **G** (give back): under the lock, the books decide: the token is sent again, or it pays for a shrink.
//! - **S** (set the limit): under the lock, tokens are made, or free ones are received and destroyed until enough are
//!   gone or none is free.
//! - **X** (close): under the lock, the sender is taken out and all free tokens are destroyed; then it is dropped, which
//!   wakes every receiver.
//!
//! Invariant, whenever the lock is free: in debt, no token is free. S leaves it so, since under the lock nobody sends,
//! and G sends nothing while there is a debt. Hence nobody is admitted beyond the limit in force, however a return and a
//! shrink overlap.
//!
//! The lock is held while crossbeam unparks a thread. No waker and no foreign code runs under it: a token that is
//! destroyed there is dissolved, not dropped, and the `Notify` fires afterwards.

use super::ledger::{Fate, Ledger};
use super::link::{Receiver, Sender, TryRecvError, unbounded};
use super::token::ChannelToken;
use crate::semaphore::error::TryAcquireError;
use crate::sync::notify::Notify;
use crate::sync::shim::{Mutex, MutexGuard};
use crate::sync::turns::Turns;
use std::sync::Arc;

pub(super) struct Home {
    pub(super) receiver: Receiver<ChannelToken>,
    pub(super) notify: Notify,
    /// The policies that wait.
    pub(super) turns: Turns,
    books: Mutex<Books>,
}

pub(super) struct Books {
    pub(super) ledger: Ledger,
    /// The only one; none once it is closed.
    sender: Option<Sender<ChannelToken>>,
}

impl Home {
    pub(super) fn new() -> Arc<Self> {
        let (sender, receiver) = unbounded();
        Arc::new(Self {
            receiver,
            notify: Notify::new(),
            turns: Turns::new(),
            books: Mutex::new(Books {
                ledger: Ledger::new(),
                sender: Some(sender),
            }),
        })
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock()
    }

    /// Whether it is closed, its limit, and how many tokens are free: not while somebody has some in hand to see whether they
    /// are enough.
    pub(super) fn look(&self) -> (bool, usize, usize) {
        let books = self.books();
        (books.ledger.is_closed(), books.ledger.limit(), self.receiver.len())
    }

    /// True for more than any limit that was ever set, where one above zero was.
    pub(super) fn is_oversized(&self, n: usize) -> bool {
        self.books().ledger.is_oversized(n)
    }

    /// Makes `n` tokens free. Under the lock.
    fn put(self: &Arc<Self>, books: &Books, n: usize) {
        let Some(sender) = &books.sender else { return };
        for _ in 0..n {
            let sent = sender.send(ChannelToken::of(self));
            debug_assert!(sent.is_ok(), "this holds a receiver");
        }
    }

    /// Takes `n` tokens, or none, and dissolves them.
    pub(super) fn take(self: &Arc<Self>, n: usize) -> Result<(), TryAcquireError> {
        match n {
            1 => self.receiver.try_recv().map(ChannelToken::dissolve).map_err(refused),
            n => self.take_many(n),
        }
    }

    fn take_many(self: &Arc<Self>, n: usize) -> Result<(), TryAcquireError> {
        let books = self.books();
        if books.ledger.is_closed() {
            return Err(TryAcquireError::Closed);
        }
        // Most refusals end here, without having disturbed anybody.
        if self.receiver.len() < n {
            return Err(TryAcquireError::NoPermits);
        }
        for taken in 0..n {
            if let Ok(token) = self.receiver.try_recv() {
                token.dissolve();
                continue;
            }
            // Somebody took a single one meanwhile, which needs no lock.
            if !seeded!("channel_keeps_part") {
                self.put(&books, taken);
            }
            drop(books);
            // Whoever asked while they were away was refused.
            if !seeded!("channel_quiet_rollback") {
                self.notify.notify_all();
            }
            return Err(TryAcquireError::NoPermits);
        }
        Ok(())
    }

    /// Gives back what `n` tokens stood for.
    pub(super) fn give_back(self: &Arc<Self>, n: usize) {
        {
            let mut books = self.books();
            for _ in 0..n {
                let fate = books.ledger.judge();
                if seeded!("channel_late_debt") {
                    drop(books);
                    books = self.books();
                }
                if fate == Fate::Kept {
                    self.put(&books, 1);
                }
            }
        }
        if !seeded!("channel_quiet_release") {
            self.notify.notify_all();
        }
    }

    /// What `n` tokens stood for never comes back.
    pub(super) fn lose(&self, n: usize) {
        self.books().ledger.lose(n);
        // As after any change of the limit: a policy that wants more makes way.
        self.notify.notify_reconfigured();
    }

    pub(super) fn set_limit(self: &Arc<Self>, limit: usize) {
        {
            let mut books = self.books();
            if seeded!("channel_torn_limit") {
                let mut ledger = books.ledger;
                drop(books);
                let made = ledger.set_limit(limit);
                books = self.books();
                books.ledger = ledger;
                self.put(&books, made);
            } else {
                let made = books.ledger.set_limit(limit);
                self.put(&books, made);
            }
            self.withdraw(&mut books);
        }
        self.notify.notify_reconfigured();
    }

    pub(super) fn close(&self) {
        let sender = {
            let mut books = self.books();
            books.ledger.close();
            let sender = books.sender.take();
            if !seeded!("channel_close_keeps_free") {
                self.withdraw(&mut books);
            }
            sender
        };
        if seeded!("channel_quiet_close") {
            std::mem::forget(sender);
            return;
        }
        // Wakes all who receive: the channel is empty, and now it has no sender.
        drop(sender);
        self.notify.notify_all();
    }

    /// Destroys free tokens as long as the books want it. Under the lock.
    fn withdraw(&self, books: &mut Books) {
        while books.ledger.debt() > 0 || books.ledger.is_closed() {
            let Ok(token) = self.receiver.try_recv() else { return };
            token.dissolve();
            let fate = books.ledger.judge();
            debug_assert_eq!(fate, Fate::Swallowed);
        }
    }
}

pub(super) fn refused(error: TryRecvError) -> TryAcquireError {
    match error {
        TryRecvError::Empty => TryAcquireError::NoPermits,
        TryRecvError::Disconnected => TryAcquireError::Closed,
    }
}
