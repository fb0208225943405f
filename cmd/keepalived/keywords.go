package keepalived

import "strings"

// remark says what becomes of a keyword. An empty say: nothing, because headgate does that anyway.
type remark struct {
	kind Kind
	say  string
}

// option is a word behind an address, and how many words belong to it.
type option struct {
	kind   Kind
	say    string
	values int
	usual  string // the value that changes nothing
}

// table puts the words of each line under its remark.
func table(words map[string]remark) map[string]remark {
	all := make(map[string]remark, len(words))
	for names, r := range words {
		for name := range strings.FieldsSeq(names) {
			all[name] = r
		}
	}
	return all
}

const (
	ownWire    = "left out: the hosts speak headgate's own protocol"
	ownProcess = "left out: it is about keepalived's own processes"
	byNotify   = "left out: let vip.notify send it, or alert on headgate_vip_transitions_total"
	keepsLVS   = "left out: headgate does no LVS: keep keepalived for it, with this block and without vrrp_instance, or serve it through an Ingress"
	byNetwork  = "left out: headgate moves addresses only: write it into the configuration of the network, or let vip.notify set it"
	ownMAC     = "left out: a VIP is on the interface itself, with its hardware address; neighbours learn of a move by ARP and NDP announcements"
	accepts    = "left out: whoever owns a VIP accepts what is sent to it, because the proxy listens there"
)

// topKeywords are those outside of all blocks, but for the ones that are translated.
func topKeywords() map[string]remark {
	return table(map[string]remark{
		"virtual_server virtual_server_group SSL":     {LeftOut, keepsLVS},
		"static_ipaddress static_routes static_rules": {LeftOut, "left out: what does not move belongs into the configuration of the network"},
		"track_file vrrp_track_file bfd_instance":     {LeftOut, "left out: let what changes it call 'headgate drain' and 'headgate undrain'"},
		"track_group":              {Note, "left out with the static addresses that it is for"},
		"garp_group":               {Note, "left out: a VIP is announced after 0, 20, 100 and 500 ms, and every 30 s"},
		"interface_up_down_delays": {Differs, "left out: a VIP moves as soon as its link is down, and comes back after vip.preemptDelay"},
		"linkbeat_interfaces linkbeat_use_polling":                                 {Note, "left out: the kernel tells the state of a link"},
		"net_namespace net_namespace_ipvs":                                         {LeftOut, "left out: run headgate-vip.service in that namespace (NetworkNamespacePath= in a drop-in)"},
		"namespace_with_ipsets instance use_pid_dir child_wait_time":               {Note, ownProcess},
		"vrrp_script vrrp_track_process vrrp_instance vrrp_sync_group global_defs": {},
		"include_check": {Note, "left out: a file that cannot be included is always told"},
		"process_names process_name vrrp_process_name checker_process_name bfd_process_name": {Note, ownProcess},
		"notification_email smtp_server": {LeftOut, byNotify},
		"virtual_ipaddress virtual_ipaddress_excluded unicast_peer track_interface track_script": {LeftOut, "left out: it belongs into a vrrp_instance"},
	})
}

// globalKeywords are those of global_defs.
func globalKeywords() map[string]remark {
	return table(map[string]remark{
		"router_id": {Note, "left out: a host is called by its host name; write gossip.host for another one, unique among the hosts"},
		"notification_email notification_email_from smtp_server smtp_helo_name smtp_connect_timeout smtp_alert smtp_alert_vrrp": {Differs, byNotify},
		"smtp_alert_checker checker_log_all_failures no_email_faults no_checker_emails rs_init_notifies":                        {Note, "left out with the mails and the LVS that it is for"},
		"default_interface":                  {LeftOut, "no name of an interface: write vip.interface"},
		"script_user enable_script_security": {Note, "left out: vip.notify runs as the user of the VIP process, without a shell"},
		"notify_fifo notify_fifo_script vrrp_notify_fifo vrrp_notify_fifo_script":                              {LeftOut, "left out: there is no FIFO: let vip.notify write to it"},
		"lvs_notify_fifo lvs_notify_fifo_script fifo_write_vrrp_states_on_reload vrrp_notify_priority_changes": {Note, "left out with the FIFO that it is for"},
		"startup_script shutdown_script":                 {LeftOut, "left out: write ExecStartPre= or ExecStopPost= into a drop-in of headgate-vip.service"},
		"startup_script_timeout shutdown_script_timeout": {Note, "left out with the script that it is for"},
		"vrrp_strict": {Differs, accepts + "; strict mode as a whole is about VRRP on the wire, which is not spoken"},
		"vrrp_iptables vrrp_ipsets nftables nftables_priority nftables_counters nftables_ifindex": {Differs, "left out: headgate sets no packet filter for VIPs; they accept what is sent to them"},
		"lvs_sync_daemon lvs_timeouts lvs_flush lvs_flush_on_stop":                                {LeftOut, keepsLVS},
		"vrrp_startup_delay": {Differs, "left out: the VIP process looks around when it starts, and takes over once the proxy is ready"},
		"enable_snmp_vrrp enable_snmp_checker enable_snmp_rfc enable_snmp_rfcv2 enable_snmp_rfcv3 enable_traps snmp_socket enable_dbus dbus_service_name":                                                                                      {LeftOut, "left out: watch vip.metricsListen (Prometheus), or 'headgate vip status -o json'"},
		"vrrp_rt_priority vrrp_priority max_auto_priority min_auto_priority_delay vrrp_no_swap vrrp_cpu_affinity vrrp_rlimit_rttime":                                                                                                           {Note, "left out: the VIP process runs under the real-time scheduler where it may (vip.realtime)"},
		"vrrp_garp_master_delay vrrp_garp_master_repeat vrrp_garp_lower_prio_delay vrrp_garp_lower_prio_repeat vrrp_garp_master_refresh vrrp_garp_master_refresh_repeat vrrp_garp_interval vrrp_gna_interval vrrp_min_garp vrrp_garp_extra_if": {Note, "left out: a VIP is announced after 0, 20, 100 and 500 ms, and every 30 s"},
		"vrrp_version vrrp_mcast_group4 vrrp_mcast_group6 vrrp_check_unicast_src vrrp_skip_check_adv_addr vrrp_lower_prio_no_advert vrrp_higher_prio_send_advert vrrp_down_timer_adverts log_unknown_vrids disable_local_igmp":                 {Note, ownWire},
		"vmac_prefix vmac_addr_prefix": {Note, ownMAC},
		"dynamic_interfaces":           {Note, "left out: an interface may come and go at any time"},
		"checker_cpu_affinity checker_no_swap checker_priority checker_rlimit_rttime checker_rt_priority bfd_cpu_affinity bfd_no_swap bfd_priority bfd_rlimit_rttime bfd_rt_priority":             {Note, ownProcess},
		"process_names process_name vrrp_process_name checker_process_name bfd_process_name instance net_namespace net_namespace_ipvs use_pid_dir child_wait_time linkbeat_use_polling":           {Note, ownProcess},
		"config_save_dir tmp_config_directory data_use_instance include_check random_seed reload_check_config reload_file reload_repeat reload_time_file umask":                                   {Note, ownProcess},
		"vrrp_netlink_cmd_rcv_bufs vrrp_netlink_cmd_rcv_bufs_force vrrp_netlink_monitor_rcv_bufs vrrp_netlink_monitor_rcv_bufs_force vrrp_rx_bufs_policy vrrp_rx_bufs_multiplier":                 {Note, ownProcess},
		"lvs_netlink_cmd_rcv_bufs lvs_netlink_cmd_rcv_bufs_force lvs_netlink_monitor_rcv_bufs lvs_netlink_monitor_rcv_bufs_force nftables_ipvs nftables_ipvs_priority nftables_ipvs_start_fwmark": {Note, "left out with the LVS that it is for"},
		"process_monitor_rcv_bufs process_monitor_rcv_bufs_force": {Note, ownProcess},
	})
}

// instanceKeywords are those of vrrp_instance and vrrp_sync_group.
func instanceKeywords() map[string]remark {
	return table(map[string]remark{
		"authentication auth_type auth_pass": {Differs, "the password is not taken over, and not shown: the hosts authenticate each other with gossip.keyFile; 'headgate gossip genkey' makes it"},
		"advert_int":                         {Note, "left out: heartbeats are sent every 50 ms (vip.heartbeat), and a silent host is noticed after three (vip.misses)"},
		"garp_master_delay garp_master_repeat garp_lower_prio_delay garp_lower_prio_repeat garp_master_refresh garp_master_refresh_repeat garp_extra_if":                                                                   {Note, "left out: a VIP is announced after 0, 20, 100 and 500 ms, and every 30 s"},
		"version native_ipv6 mcast_dst_ip unicast_ttl check_unicast_src unicast_fault_no_peer old_unicast_checksum down_timer_adverts lower_prio_no_advert higher_prio_send_advert skip_check_adv_addr kernel_rx_buf_size": {Note, ownWire},
		"use_vmac use_vmac_addr vmac_xmit_base use_ipvlan": {Differs, ownMAC},
		"dont_track_primary":           {Differs, "left out: a host whose link is down owns no VIP on it"},
		"track_src_ip":                 {Note, "left out: a host whose address is gone is noticed by the others"},
		"vrf":                          {LeftOut, "left out: the VIP process must be reached by the others outside of a VRF"},
		"track_file track_bfd":         {LeftOut, "left out: let what changes it call 'headgate drain' and 'headgate undrain'"},
		"virtual_routes virtual_rules": {LeftOut, byNetwork},
		"promote_secondaries":          {Note, "left out: a VIP that the kernel removes with another address is put back"},
		"accept preempt debug linkbeat_use_polling global_tracking": {},
		"no_accept":   {Differs, accepts},
		"strict_mode": {Differs, accepts + "; strict mode as a whole is about VRRP on the wire, which is not spoken"},
		"smtp_alert":  {Differs, byNotify},
		"notify_deleted notify_master_rx_lower_pri": {LeftOut, "left out: there is no such state: see vip.notify for those that there are"},
		"notify_priority_changes":                   {Note, "left out with the FIFO that it is for"},
		"lvs_sync_daemon_interface lvs_sync_daemon": {LeftOut, keepsLVS},
		"sync_group_tracking_weight":                {Note, "left out: no weights are tracked"},
	})
}

// addressOptions are the words behind an address but for dev.
func addressOptions() map[string]option {
	return map[string]option{
		"brd":           {kind: Note, say: "left out: a VIP needs no broadcast address", values: 1},
		"broadcast":     {kind: Note, say: "left out: a VIP needs no broadcast address", values: 1},
		"scope":         {kind: Differs, say: "left out: a VIP has the scope global", values: 1, usual: "global"},
		"label":         {kind: Note, say: "left out: a VIP has no label; 'ip address' shows it without", values: 1},
		"peer":          {kind: LeftOut, say: "left out: a VIP has no peer address: write a route to it into the configuration of the network", values: 1},
		"use_vmac":      {kind: Differs, say: ownMAC},
		"home":          {kind: Note, say: "left out: it is for Mobile IPv6"},
		"-nodad":        {kind: Note, say: "left out: before it takes a VIP headgate probes itself, without the kernel's wait"},
		"nodad":         {kind: Note, say: "left out: before it takes a VIP headgate probes itself, without the kernel's wait"},
		"mngtmpaddr":    {kind: Note, say: "left out: no temporary addresses are made of a VIP"},
		"noprefixroute": {}, // no VIP adds a route
		"autojoin":      {kind: LeftOut, say: "left out: it is for multicast, and a VIP is unicast"},
		"no_track":      {kind: Differs, say: "left out: a VIP that somebody deleted is put back"},
		"preferred_lft": {kind: Differs, say: "left out: an IPv6 VIP is deprecated, so that this host does not choose it as a source; an IPv4 one is an address like others", values: 1, usual: "0"},
		"track_group":   {kind: Note, say: "left out: it is for static addresses", values: 1},
	}
}
