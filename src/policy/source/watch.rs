//! Tells when something happens in a folder.

use super::SourceError;
use crate::sync::wake::quietly;
use crate::time::Sleep;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// A folder that is watched, as long as this lives.
pub(super) struct Watch {
    signal: Arc<Mutex<Signal>>,
    _watcher: RecommendedWatcher,
}

#[derive(Default)]
struct Signal {
    changed: bool,
    waker: Option<Waker>,
}

impl Watch {
    /// Watches the folder of `file`.
    pub(super) fn new(file: &Path) -> Result<Self, SourceError> {
        let signal = Arc::new(Mutex::new(Signal::default()));
        let told = Arc::clone(&signal);
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Somebody has only read: we do ourselves.
            if event.is_ok_and(|event| event.kind.is_access()) {
                return;
            }
            let waker = {
                let mut signal = told.lock();
                signal.changed = true;
                signal.waker.take()
            };
            if let Some(waker) = waker {
                quietly(|| waker.wake());
            }
        })?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        watcher.watch(folder.unwrap_or(Path::new(".")), RecursiveMode::NonRecursive)?;
        Ok(Self {
            signal,
            _watcher: watcher,
        })
    }

    /// Waits until something has happened since it was last asked, or `timer` is over.
    pub(super) async fn changed_or(&self, mut timer: Sleep) {
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let (changed, old) = {
                let mut signal = self.signal.lock();
                let changed = std::mem::take(&mut signal.changed);
                (changed, signal.waker.replace(waker))
            };
            drop(old);
            if changed {
                return Poll::Ready(());
            }
            Pin::new(&mut timer).poll(cx)
        })
        .await;
    }
}
