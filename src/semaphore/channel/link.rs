//! What the models have for crossbeam's channel, with the same face.

use crossbeam_channel::{RecvError, SendError, TryRecvError};
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

struct Channel<T> {
    /// The messages, and whether the sender has gone.
    messages: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
}

impl<T> Channel<T> {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        messages: Mutex::new((VecDeque::new(), false)),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

/// The only sender.
pub(super) struct Sender<T>(Arc<Channel<T>>);

impl<T> Sender<T> {
    pub(super) fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.lock().0.push_back(message);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().1 = true;
        self.0.changed.notify_all();
    }
}

/// As crossbeam's: the messages that are left are received before the error.
pub struct Receiver<T>(Arc<Channel<T>>);

impl<T> Receiver<T> {
    pub(super) fn len(&self) -> usize {
        self.0.lock().0.len()
    }

    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut messages = self.0.lock();
        let gone = messages.1;
        messages.0.pop_front().ok_or(match gone {
            true => TryRecvError::Disconnected,
            false => TryRecvError::Empty,
        })
    }

    pub fn recv(&self) -> Result<T, RecvError> {
        let mut messages = self.0.lock();
        loop {
            if let Some(message) = messages.0.pop_front() {
                return Ok(message);
            }
            if messages.1 {
                return Err(RecvError);
            }
            messages = self.0.changed.wait(messages).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
