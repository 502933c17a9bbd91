//! What the process needs of the operating system.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::GatewaySettings;

/// Raises the soft limit of open files to the hard one, and warns when that is too low for the connections that the settings
/// allow: a relay has two sockets.
pub(super) fn raise_open_files(settings: &GatewaySettings) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    let limit = getrlimit(Resource::Nofile).current;
    if let (Some(files), Some(wanted)) = (limit, settings.max_connections.map(needed))
        && files < wanted
    {
        tracing::warn!(
            files,
            wanted,
            "too few open files are allowed for maxConcurrentInboundConnections; connections beyond are not accepted"
        );
    }
}

fn needed(connections: usize) -> u64 {
    u64::try_from(connections)
        .unwrap_or(u64::MAX)
        .saturating_mul(2)
}
