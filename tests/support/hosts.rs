//! Two hosts on one machine: network namespaces with a cable between them.

#![allow(dead_code, reason = "each test crate uses some of what is here")]

use std::path::Path;
use std::process::{Command, Stdio};

/// The address of the first host on the cable.
pub const FIRST: &str = "10.213.7.1";
/// The address of the second one.
pub const SECOND: &str = "10.213.7.2";

/// Two namespaces, which end with this.
pub struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// None where this machine lets nobody make any, which is said.
    pub fn new(name: &str) -> Option<Hosts> {
        let hosts = Hosts { names: [1, 2].map(|host| format!("shardc-{name}-{}-{host}", std::process::id())) };
        let made = hosts.make();
        if !made {
            eprintln!("skipped: no network namespaces can be made, which takes `ip` and the rights of root");
        }
        made.then_some(hosts)
    }

    fn make(&self) -> bool {
        let [one, two] = &self.names;
        let ends = [(one, FIRST), (two, SECOND)];
        ip(&["netns", "add", one])
            && ip(&["netns", "add", two])
            && ip(&["link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", two])
            && ends.iter().all(|(host, address)| {
                ip(&["-n", host, "address", "add", &format!("{address}/24"), "dev", "cable"])
                    && ip(&["-n", host, "link", "set", "cable", "up"])
                    && ip(&["-n", host, "link", "set", "lo", "up"])
            })
    }

    /// A program on one of the hosts, 0 or 1.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[host]]).arg(program);
        command
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "delete", name]);
        }
    }
}

/// Whether `ip` does so.
fn ip(arguments: &[&str]) -> bool {
    let status = Command::new("ip").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
