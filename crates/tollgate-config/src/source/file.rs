//! A file that changes while it is in use.

use super::last_good::LastGood;
use crate::file::{ConfigFile, read_bytes};
use crate::kind::Kinds;
use crate::spec::{ConfigError, PolicySpec};
use std::path::{Path, PathBuf};

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
#[derive(Debug)]
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
        let (spec, last_good) = LastGood::open(&path.display().to_string(), read_bytes(&path), kinds)?;
        Ok((spec, Self { path, last_good }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file now, and blocks on the disk. Gives its version, or why there is none, unless it is as it was.
    pub fn look(&mut self) -> Option<Result<S, ConfigError>> {
        self.last_good.look(read_bytes(&self.path))
    }
}
