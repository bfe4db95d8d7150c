//! Files, TOML and JSON.

mod de;
mod error;
mod tree;

pub use error::{ConfigError, Fault};

use crate::kind::Kinds;
use crate::spec::{PathPart, PolicySetSpec, PolicySpec, SpecError};
use de::Reader;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::path::Path;
use tree::{Node, Value};

/// The format of a file.
///
/// ```
/// # use tollgate_config::Format;
/// # use std::path::Path;
/// assert_eq!(Format::of_path(Path::new("gate.toml")), Some(Format::Toml));
/// assert_eq!(Format::of_path(Path::new("gate.json")), Some(Format::Json));
/// assert_eq!(Format::of_path(Path::new("gate.yaml")), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// [TOML](https://toml.io) 1.1.
    Toml,
    /// JSON, as RFC 8259 has it: no comments.
    Json,
}

impl Format {
    /// The format of a file of this name: `.toml` or `.json`.
    pub fn of_path(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "toml" => Some(Self::Toml),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

/// What a file may hold: a [`PolicySpec`], a [`PolicySetSpec`], or a configuration of your own that has some within.
///
/// ```
/// use tollgate_config::{ConfigFile, Format, Kinds, PolicySpec, SpecError, parse};
///
/// #[derive(serde::Deserialize)]
/// struct AppConfig {
///     port: u16,
///     upstream: PolicySpec,
/// }
/// impl ConfigFile for AppConfig {
///     fn check(&self, kinds: &Kinds) -> Result<(), SpecError> {
///         self.upstream.check_with(kinds).map_err(|error| error.within("upstream"))
///     }
/// }
///
/// let text = "port = 80\n[[upstream.leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = 4\n";
/// let config: AppConfig = parse(text, Format::Toml)?;
/// assert_eq!((config.port, config.upstream.legs.len()), (80, 1));
/// let error = parse::<AppConfig>(&text.replace("80", "80000"), Format::Toml).map(|_| ()).unwrap_err();
/// assert_eq!(error.to_string(), "text:1:8: key `port`: 80000 was given, and a whole number of 0 to 65535 is allowed");
/// # Ok::<(), tollgate_config::ConfigError>(())
/// ```
pub trait ConfigFile: DeserializeOwned {
    /// Finds the first mistake that shows only in the whole.
    ///
    /// # Errors
    /// [`SpecError`], whose path is found in the file.
    fn check(&self, kinds: &Kinds) -> Result<(), SpecError> {
        let _ = kinds;
        Ok(())
    }
}

impl ConfigFile for PolicySpec {
    fn check(&self, kinds: &Kinds) -> Result<(), SpecError> {
        self.check_with(kinds)
    }
}

impl ConfigFile for PolicySetSpec {
    fn check(&self, kinds: &Kinds) -> Result<(), SpecError> {
        self.check_with(kinds)
    }
}

/// The largest file that is read, in bytes.
pub const MAX_FILE: u64 = 1 << 20;

/// Reads a file whose name ends in `.toml` or `.json`.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read, is larger than [`MAX_FILE`], or has a mistake: the first one.
///
/// ```
/// # use tollgate_config::{PolicySpec, load};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("limits.toml");
/// std::fs::write(&path, "[[leg]]\nname = 'slots'\nkind = 'semaphore'\nlimit = 4")?;
/// let spec: PolicySpec = load(&path)?;
/// assert_eq!(spec.legs.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load<S: ConfigFile>(path: impl AsRef<Path>) -> Result<S, ConfigError> {
    Kinds::new().load(path)
}

/// Reads a text.
///
/// # Errors
/// [`ConfigError`]: the first mistake.
pub fn parse<S: ConfigFile>(text: &str, format: Format) -> Result<S, ConfigError> {
    Kinds::new().parse(text, format)
}

impl Kinds {
    /// Reads a file whose name ends in `.toml` or `.json`, with legs of these kinds as well.
    ///
    /// # Errors
    /// As those of [`load`].
    pub fn load<S: ConfigFile>(&self, path: impl AsRef<Path>) -> Result<S, ConfigError> {
        let path = path.as_ref();
        let read = read_bytes(path).and_then(|(bytes, format)| self.parse_bytes(&bytes, format));
        read.map_err(|error| error.of_file(path))
    }

    /// Reads a text, with legs of these kinds as well.
    ///
    /// # Errors
    /// [`ConfigError`]: the first mistake.
    pub fn parse<S: ConfigFile>(&self, text: &str, format: Format) -> Result<S, ConfigError> {
        let root = match format {
            Format::Toml => tree::toml(text)?,
            Format::Json => tree::json(text)?,
        };
        let reader = Reader {
            text,
            node: &root,
            is_strict: false,
        };
        let spec = S::deserialize(reader).map_err(|mistake| mistake.in_text(text))?;
        spec.check(self).map_err(|error| located(text, &root, &error))?;
        Ok(spec)
    }

    pub(crate) fn parse_bytes<S: ConfigFile>(&self, bytes: &[u8], format: Format) -> Result<S, ConfigError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.parse(text, format),
            Err(error) => {
                let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let why = "this is no UTF-8, and nothing else is allowed".into();
                Err(ConfigError::at(&good, good.len(), Fault::Syntax { why }))
            }
        }
    }
}

/// Reads a value of serde that is no file: the path of a mistake stands for its place.
pub(crate) fn read_value<T: DeserializeOwned>(value: &serde_json::Value) -> Result<T, SpecError> {
    let mut paths = Vec::new();
    let node = &tree::of_value(value, &mut Vec::new(), &mut paths);
    let reader = Reader {
        text: "",
        node,
        is_strict: true,
    };
    T::deserialize(reader).map_err(|mistake| mistake.on_path(&paths))
}

/// The format of a file, by its name.
pub(crate) fn format_of(path: &Path) -> Result<Format, ConfigError> {
    let wrong = || ConfigError::unreadable("its name ends in neither `.toml` nor `.json`");
    Format::of_path(path).ok_or_else(wrong)
}

/// Reads a file, and its format by its name.
pub(crate) fn read_bytes(path: &Path) -> Result<(Vec<u8>, Format), ConfigError> {
    let format = format_of(path)?;
    let unreadable = |error: std::io::Error| ConfigError::unreadable(error.to_string());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE {
        let why = format!("it is longer than the {MAX_FILE} bytes that are allowed");
        return Err(ConfigError::unreadable(why));
    }
    Ok((bytes, format))
}

/// The place in the file of a mistake that shows only in the whole: down its path, as far as there is something.
fn located(text: &str, root: &Node, error: &SpecError) -> ConfigError {
    let mut node = root;
    for part in error.path() {
        let next = match (part, &node.value) {
            // The name that it had before.
            (PathPart::Key(key), _) if &**key == "load_of" => node.get(key).or_else(|| node.get("leg")),
            (PathPart::Key(key), _) => node.get(key),
            (PathPart::Row(row), Value::List(rows)) => rows.get(*row),
            (PathPart::Row(_), _) => None,
        };
        match next {
            Some(next) => node = next,
            None => break,
        }
    }
    let fault = Fault::Value {
        key: error.key().into(),
        why: error.fault().into(),
    };
    ConfigError::at(text, node.at, fault)
}
