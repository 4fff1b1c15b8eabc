//! Slurm's lists of machines, such as `node[07-12,20],login1`.

/// The first machine of a list, if there is one.
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(at) = rest.find(['[', ',']) {
        host.push_str(&rest[..at]);
        let Some(inside) = rest[at..].strip_prefix('[') else { return Some(host).filter(|host| !host.is_empty()) };
        let (numbers, behind) = inside.split_once(']')?;
        host.push_str(numbers.split([',', '-']).next()?);
        rest = behind;
    }
    host.push_str(rest);
    Some(host).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_machine_of_a_list() {
        let cases = [
            ("node7", Some("node7")),
            ("node[07-12,20],login1", Some("node07")),
            ("gpu-a[3,5]-ib", Some("gpu-a3-ib")),
            ("rack[1-2]n[03-04]", Some("rack1n03")),
            ("a,b", Some("a")),
            ("", None),
            ("node[1", None),
        ];
        for (list, host) in cases {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
    }
}
