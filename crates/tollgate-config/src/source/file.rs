//! A file that changes while it is in use.

use super::last_good::LastGood;
#[cfg(feature = "watch")]
use super::{Source, SourceError};
use crate::file::{ConfigError, ConfigFile, read_bytes};
use crate::kind::Kinds;
use crate::spec::PolicySpec;
#[cfg(feature = "watch")]
use notify_debouncer_full::{DebounceEventResult, Debouncer, RecommendedCache, new_debouncer};
use std::fmt;
use std::path::{Path, PathBuf};
#[cfg(feature = "watch")]
use std::time::Duration;
#[cfg(feature = "watch")]
use tokio::sync::watch;

/// A file of one policy, or of those of a service, that changes while it is in use.
///
/// [`look`](Self::look) reads it when the program says so, such as at a signal. `watch`, of the feature of that name, makes a
/// [`Source`](crate::Source) of it.
///
/// | action | effect |
/// |---|---|
/// | write a new file and rename it | the new content counts |
/// | leave a file that is wrong, delete it or move it | an error, once; the version in force stays |
/// | put it back as it was, or touch it | nothing: only the content counts |
/// | swap a symbolic link above it, as Kubernetes does | the new content counts |
///
/// ```
/// # use tollgate_config::{FileSource, PolicySpec};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("policy.toml");
/// let slots = |limit| format!("[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = {limit}");
/// std::fs::write(&path, slots(4))?;
/// let (spec, mut source) = FileSource::<PolicySpec>::open(&path)?;
/// assert_eq!((spec.legs.len(), source.path()), (1, &*path));
/// assert!(source.look().is_none(), "it is as it was");
/// std::fs::write(&path, slots(5))?;
/// assert!(matches!(source.look(), Some(Ok(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileSource<S = PolicySpec> {
    path: PathBuf,
    last_good: LastGood<S>,
}

impl<S: ConfigFile> FileSource<S> {
    /// Reads the file, and makes a source of its later versions.
    ///
    /// # Errors
    /// [`ConfigError`]: it cannot be read, or has a mistake.
    pub fn open(path: impl Into<PathBuf>) -> Result<(S, Self), ConfigError> {
        Self::open_with(path, &Kinds::new())
    }

    /// The same with legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn open_with(path: impl Into<PathBuf>, kinds: &Kinds) -> Result<(S, Self), ConfigError> {
        let path = path.into();
        let bytes = read_bytes(&path).map_err(|error| error.of_file(&path))?;
        let (spec, last_good) = LastGood::first(&path.display().to_string(), Some(bytes), kinds)?;
        Ok((spec, Self { path, last_good }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file now, and blocks on the disk. Gives its version, or why there is none, unless it is as it was.
    pub fn look(&mut self) -> Option<Result<S, ConfigError>> {
        self.last_good.see_result(read_bytes(&self.path))
    }

    /// Reads the file once it has been quiet for 50 ms after something has happened in its folder. The folder is watched rather than the
    /// file, since editors replace the file.
    ///
    /// The file is read on a thread of the watcher. File systems that report nothing, such as those of other machines, are not seen:
    /// call [`look`](Self::look) from time to time there.
    ///
    /// # Errors
    /// [`SourceError`]: the folder cannot be watched.
    ///
    /// ```no_run
    /// # use tollgate::Clock;
    /// # use tollgate_config::{FileSource, PolicySpec, Reload};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let (spec, source) = FileSource::<PolicySpec>::open("/etc/gate/policy.toml")?;
    /// let (policy, source) = (spec.build(&Clock::real())?, source.watch()?);
    /// let followed = policy.clone();
    /// tokio::spawn(async move { followed.follow(source, |event| eprintln!("{event}")).await });
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "watch")]
    #[cfg_attr(docsrs, doc(cfg(feature = "watch")))]
    pub fn watch(self) -> Result<WatchedFile<S>, SourceError> {
        const QUIET: Duration = Duration::from_millis(50);
        let (sender, contents) = watch::channel(None);
        let path = self.path.clone();
        let mut watcher = new_debouncer(QUIET, None, move |events: DebounceEventResult| {
            // A mere read of the folder, as our own.
            let only_read = events.is_ok_and(|events| events.iter().all(|event| event.kind.is_access()));
            if !only_read {
                sender.send_replace(Some(read_bytes(&path)));
            }
        })
        .map_err(SourceError::new)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        watcher
            .watch(folder, notify::RecursiveMode::NonRecursive)
            .map_err(SourceError::new)?;
        let mut watched = WatchedFile {
            source: self,
            contents,
            unseen: None,
            _watcher: watcher,
        };
        // What has changed between the first read and the watch.
        watched.unseen = watched.source.look();
        Ok(watched)
    }
}

impl<S> fmt::Debug for FileSource<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSource")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// A file that is watched as long as this lives. Made by [`FileSource::watch`].
#[cfg(feature = "watch")]
pub struct WatchedFile<S = PolicySpec> {
    source: FileSource<S>,
    contents: watch::Receiver<Option<Result<Vec<u8>, ConfigError>>>,
    unseen: Option<Result<S, ConfigError>>,
    _watcher: Debouncer<notify::RecommendedWatcher, RecommendedCache>,
}

#[cfg(feature = "watch")]
impl<S: ConfigFile + Send> Source<S> for WatchedFile<S> {
    async fn next(&mut self) -> Option<Result<S, SourceError>> {
        loop {
            if let Some(version) = self.unseen.take() {
                return Some(version.map_err(SourceError::new));
            }
            self.contents.changed().await.ok()?;
            let content = self.contents.borrow_and_update().clone();
            self.unseen = content.and_then(|content| self.source.last_good.see_result(content));
        }
    }
}

#[cfg(feature = "watch")]
impl<S> fmt::Debug for WatchedFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
