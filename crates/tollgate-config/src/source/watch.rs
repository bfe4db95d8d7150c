//! A file that is watched.

use super::{FileSource, Source};
use crate::file::{ConfigFile, read_bytes};
use crate::spec::{ConfigError, PolicySpec};
use notify::{RecommendedWatcher, RecursiveMode};
use notify_debouncer_full::{DebounceEventResult, Debouncer, RecommendedCache, new_debouncer};
use std::time::Duration;
use tokio::sync::watch;

impl<S: ConfigFile> FileSource<S> {
    /// Reads the file once it has been quiet for 50 ms after something has happened in its folder. The folder is watched rather than the
    /// file, since editors replace the file.
    ///
    /// A thread of the watcher reads the file. File systems that report nothing, such as those of other machines, are not seen: call
    /// [`look`](Self::look) from time to time there.
    ///
    /// # Errors
    /// [`ConfigError`]: the folder cannot be watched.
    ///
    /// ```no_run
    /// # use tollgate::Clock;
    /// # use tollgate_config::{FileSource, PolicySpec, Reload};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let (spec, source) = FileSource::<PolicySpec>::open("/etc/gate/policy.toml")?;
    /// let (policy, source) = (spec.build(&Clock::real())?, source.watch()?);
    /// let followed = policy.clone();
    /// let report = |event| match event {
    ///     Ok(version) => println!("version {version} is in force"),
    ///     Err(error) => eprintln!("{error}"),
    /// };
    /// tokio::spawn(async move { followed.follow(source, report).await });
    /// # Ok(())
    /// # }
    /// ```
    #[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
    pub fn watch(self) -> Result<WatchedFile<S>, ConfigError> {
        const QUIET: Duration = Duration::from_millis(50);
        let fault = |error: notify::Error| ConfigError::whole(error.to_string());
        let folder = match self.path().parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => ".".into(),
        };
        let (sender, contents) = watch::channel(Ok(Vec::new()));
        let path = self.path().to_owned();
        let changed = move |events: DebounceEventResult| {
            // A mere read of the folder, as our own.
            if !events.is_ok_and(|events| events.iter().all(|event| event.kind.is_access())) {
                drop(sender.send_replace(read_bytes(&path)));
            }
        };
        let mut watcher = new_debouncer(QUIET, None, changed).map_err(fault)?;
        let watched = watcher.watch(folder, RecursiveMode::NonRecursive);
        watched.map_err(fault)?;
        let mut source = self;
        Ok(WatchedFile {
            // What has changed between the first read and the watch.
            unseen: source.look(),
            source,
            contents,
            _watcher: watcher,
        })
    }
}

/// A file that is watched as long as this lives. Made by [`FileSource::watch`].
#[derive(Debug)]
pub struct WatchedFile<S = PolicySpec> {
    source: FileSource<S>,
    unseen: Option<Result<S, ConfigError>>,
    contents: watch::Receiver<Result<Vec<u8>, String>>,
    _watcher: Debouncer<RecommendedWatcher, RecommendedCache>,
}

impl<S: ConfigFile + Send> Source<S> for WatchedFile<S> {
    async fn next(&mut self) -> Option<Result<S, ConfigError>> {
        loop {
            if let Some(version) = self.unseen.take() {
                return Some(version);
            }
            self.contents.changed().await.ok()?;
            let content = self.contents.borrow_and_update().clone();
            self.unseen = self.source.last_good.see(content);
        }
    }
}
