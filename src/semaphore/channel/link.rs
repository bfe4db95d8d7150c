//! The channel: crossbeam's, or for the models a stand-in with the same face.

#[cfg(not(tollgate_loom))]
mod imp {
    pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
}

#[cfg(tollgate_loom)]
mod imp {
    use loom::sync::{Condvar, Mutex, MutexGuard};
    use std::collections::VecDeque;
    use std::sync::{Arc, PoisonError};
    use std::time::{Duration, Instant};

    pub(crate) use crossbeam_channel::{RecvError, RecvTimeoutError, SendError, TryRecvError};

    #[derive(Debug)]
    struct Channel<T> {
        messages: Mutex<(VecDeque<T>, bool)>,
        changed: Condvar,
    }

    impl<T> Channel<T> {
        /// The messages, and whether the sender has gone.
        fn lock(&self) -> MutexGuard<'_, (VecDeque<T>, bool)> {
            self.messages.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    pub(crate) fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
        let channel = Arc::new(Channel {
            messages: Mutex::new((VecDeque::new(), false)),
            changed: Condvar::new(),
        });
        (Sender(Arc::clone(&channel)), Receiver(channel))
    }

    /// The only sender.
    #[derive(Debug)]
    pub(crate) struct Sender<T>(Arc<Channel<T>>);

    impl<T> Sender<T> {
        pub(crate) fn send(&self, message: T) -> Result<(), SendError<T>> {
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
    #[derive(Debug)]
    pub struct Receiver<T>(Arc<Channel<T>>);

    impl<T> Receiver<T> {
        pub(crate) fn len(&self) -> usize {
            self.0.lock().0.len()
        }

        pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
            let mut messages = self.0.lock();
            let gone = messages.1;
            messages.0.pop_front().ok_or(match gone {
                true => TryRecvError::Disconnected,
                false => TryRecvError::Empty,
            })
        }

        pub(crate) fn recv(&self) -> Result<T, RecvError> {
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

        /// In a model no time passes.
        pub(crate) fn recv_timeout(&self, _: Duration) -> Result<T, RecvTimeoutError> {
            self.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            })
        }

        pub(crate) fn recv_deadline(&self, _: Instant) -> Result<T, RecvTimeoutError> {
            self.recv_timeout(Duration::ZERO)
        }
    }
}

pub(crate) use imp::*;
