//! Scripts and their calls.

use ::redis::{Arg, Cmd, ToRedisArgs, cmd};

/// A script, and its name at a server that has run it.
pub(super) struct Script {
    source: &'static str,
    hash: Box<str>,
}

impl Script {
    pub(super) fn new(source: &'static str) -> Self {
        let hash = ::redis::Script::new(source).get_hash().into();
        Self { source, hash }
    }

    /// A call with these keys, which lie together.
    pub(super) fn on(&self, keys: impl IntoIterator<Item = String>) -> Call {
        let keys: Vec<String> = keys.into_iter().collect();
        let mut by_name = cmd("EVALSHA");
        by_name.arg(&*self.hash).arg(keys.len()).arg(keys);
        Call {
            source: self.source,
            by_name,
        }
    }
}

/// A call of a script.
pub(super) struct Call {
    source: &'static str,
    by_name: Cmd,
}

impl Call {
    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.by_name.arg(argument);
        self
    }

    /// By name: for a server that knows the script.
    pub(super) fn by_name(&self) -> &Cmd {
        &self.by_name
    }

    /// In full, after which that server knows the script. It goes to that server alone: others of a cluster may be unavailable.
    pub(super) fn in_full(&self) -> Cmd {
        let mut command = cmd("EVAL");
        command.arg(self.source);
        for argument in self.by_name.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}
