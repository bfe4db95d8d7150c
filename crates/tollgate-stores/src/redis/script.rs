//! Scripts and their calls.

use ::redis::{Cmd, ToRedisArgs, cmd};

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
    pub(super) fn on(&self, keys: impl IntoIterator<Item = String>) -> Call<'_> {
        Call {
            script: self,
            keys: keys.into_iter().collect(),
            arguments: Vec::new(),
        }
    }
}

/// A call of a script.
pub(super) struct Call<'a> {
    script: &'a Script,
    keys: Vec<String>,
    arguments: Vec<Vec<u8>>,
}

impl Call<'_> {
    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        argument.write_redis_args(&mut self.arguments);
        self
    }

    /// By name: for a server that knows the script.
    pub(super) fn by_name(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// In full, after which that server knows the script. It goes to that server alone: others of a cluster may be unavailable.
    pub(super) fn in_full(&self) -> Cmd {
        self.command("EVAL", self.script.source)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = cmd(verb);
        command
            .arg(script)
            .arg(self.keys.len())
            .arg(&self.keys)
            .arg(&self.arguments);
        command
    }
}
