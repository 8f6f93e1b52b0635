/* Runs on a node: what the network does to packets, seen from outside of any fault.
 *
 *   net_meter serve PORT...                       echo UDP and take or give TCP streams, on IPv4 and IPv6, until killed
 *   net_meter udp GAP_US COUNT LINGER_MS FLOW...  COUNT packets of each flow, one of each every GAP_US; JSON. SIGINT
 *                                                 ends it early
 *   net_meter tcp put|get BYTES DEADLINE_MS FLOW  a stream of so many bytes; JSON
 *
 * A flow is ADDRESS/PORT/SIZE[n]: bytes of UDP payload, of which 24 are a header; n: without the checksum of UDP (IPv4
 * only). Each echo says the how manyth packet of its flow it answers, so both directions can be told apart. Bytes of a
 * packet are a function of its number and are summed up at both ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORTS = 16, FLOWS = 16, MOST = 65000, CHUNK = 65536, SPOILT = 1, PEERS = 1 << 12 };

struct head {
	uint32_t flow, seq, arrival, flags, size, sum;
};

struct echo {
	uint32_t seq, arrival, us;
};

struct flow {
	struct sockaddr_storage to;
	socklen_t to_size;
	char name[80];
	uint32_t id, size, spoilt_there, spoilt_here, refused;
	uint64_t *sent_us;
	struct echo *echoes;
	size_t echoed, room;
	int fd;
};

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint32_t sum_of(const unsigned char *packet, size_t size)
{
	uint32_t sum = 2166136261u;

	for (size_t i = 0; i < size; i++)
		if (i < offsetof(struct head, sum) || i >= sizeof(struct head))
			sum = (sum ^ packet[i]) * 16777619u;
	return sum;
}

static bool is_whole(const unsigned char *packet, ssize_t size)
{
	struct head head;

	if (size < (ssize_t)sizeof head)
		return false;
	memcpy(&head, packet, sizeof head);
	return head.size == (uint32_t)size && head.sum == sum_of(packet, (size_t)size);
}

static void seal(unsigned char *packet, struct head head)
{
	memcpy(packet, &head, sizeof head);
	head.sum = sum_of(packet, head.size);
	memcpy(packet, &head, sizeof head);
}

/* -- the side that answers ------------------------------------------------------------------------------------- */

static struct {
	uint64_t key;
	uint32_t flow, arrivals;
} peers[PEERS];

static uint32_t next_arrival(const struct sockaddr_in6 *from, uint32_t flow, bool whole)
{
	uint64_t key = (uint64_t)ntohs(from->sin6_port) << 32 | from->sin6_addr.s6_addr32[3];
	size_t at = key * 0x9E3779B97F4A7C15u >> 52; /* a wrong bit in the port must not hit the same place */

	if (peers[at].key != key || (whole && peers[at].flow != flow)) {
		peers[at].key = key;
		peers[at].arrivals = 0;
	}
	if (whole)
		peers[at].flow = flow;
	return peers[at].arrivals++;
}

/* From the very address that was asked: the node has many. */
static void echo_one(int fd)
{
	static unsigned char packet[MOST];
	union {
		char room[CMSG_SPACE(sizeof(struct in6_pktinfo))];
		struct cmsghdr aligned;
	} control;
	struct sockaddr_in6 from;
	struct iovec data = {packet, sizeof packet};
	struct msghdr message = {&from, sizeof from, &data, 1, &control, sizeof control, 0};
	ssize_t size = recvmsg(fd, &message, MSG_DONTWAIT);
	struct cmsghdr *told = size < 0 ? NULL : CMSG_FIRSTHDR(&message);
	struct head head;
	bool whole;

	if (size < (ssize_t)sizeof head)
		return;
	whole = is_whole(packet, size);
	memcpy(&head, packet, sizeof head);
	head.arrival = next_arrival(&from, head.flow, whole);
	head.flags = whole ? 0 : SPOILT;
	head.size = (uint32_t)size;
	seal(packet, head);
	data.iov_len = (size_t)size;
	if (told && told->cmsg_type == IPV6_PKTINFO)
		((struct in6_pktinfo *)CMSG_DATA(told))->ipi6_ifindex = 0;
	sendmsg(fd, &message, 0);
}

static void *stream(void *number)
{
	int fd = (int)(intptr_t)number;
	static char data[CHUNK];
	char order[16] = "";
	uint64_t left, done = 0;
	ssize_t n;

	if (recv(fd, order, sizeof order, MSG_WAITALL) == sizeof order) {
		left = strtoull(order + 1, NULL, 10);
		while (done < left) {
			size_t want = left - done < CHUNK ? left - done : CHUNK;

			n = order[0] == 'g' ? send(fd, data, want, MSG_NOSIGNAL) : recv(fd, data, want, 0);
			if (n <= 0)
				break;
			done += (uint64_t)n;
		}
		if (order[0] == 'p')
			send(fd, &done, sizeof done, MSG_NOSIGNAL);
		recv(fd, order, sizeof order, 0);
	}
	close(fd);
	return NULL;
}

static int bound(int type, int port)
{
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	int fd = socket(AF_INET6, type, 0), on = 1, off = 0, much = 4 << 20;

	setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &much, sizeof much);
	if (bind(fd, (void *)&any, sizeof any) < 0)
		die("bind");
	if (type == SOCK_STREAM && listen(fd, 16) < 0)
		die("listen");
	return fd;
}

static int serve(int count, char **ports)
{
	struct pollfd all[2 * PORTS];
	pthread_t thread;

	if (count > PORTS)
		return 64;
	for (int i = 0; i < count; i++) {
		all[2 * i] = (struct pollfd){.fd = bound(SOCK_DGRAM, atoi(ports[i])), .events = POLLIN};
		all[2 * i + 1] = (struct pollfd){.fd = bound(SOCK_STREAM, atoi(ports[i])), .events = POLLIN};
	}
	puts("serves");
	fflush(stdout);
	for (;;) {
		if (poll(all, (nfds_t)(2 * count), -1) < 0)
			die("poll");
		for (int i = 0; i < 2 * count; i++) {
			if (!(all[i].revents & POLLIN))
				continue;
			if (i % 2 == 0) {
				echo_one(all[i].fd);
			} else {
				int fd = accept(all[i].fd, NULL, NULL);

				if (fd >= 0 && !pthread_create(&thread, NULL, stream, (void *)(intptr_t)fd))
					pthread_detach(thread);
			}
		}
	}
}

/* -- the side that asks ---------------------------------------------------------------------------------------- */

/* An address, with %INTERFACE where it is local to a link. */
static bool address(struct flow *flow, char *host, int port)
{
	struct sockaddr_in *v4 = (void *)&flow->to;
	struct sockaddr_in6 *v6 = (void *)&flow->to;
	char *scope = strchr(host, '%');

	if (scope)
		*scope++ = 0;
	if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		flow->to_size = sizeof *v4;
		return true;
	}
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons((uint16_t)port);
	v6->sin6_scope_id = scope ? if_nametoindex(scope) : 0;
	flow->to_size = sizeof *v6;
	return inet_pton(AF_INET6, host, &v6->sin6_addr) == 1;
}

static void open_flow(struct flow *flow, const char *text, int type)
{
	char host[64], plain = 0;
	int port, much = 4 << 20, on = 1;

	if (sscanf(text, "%63[^/]/%d/%u%c", host, &port, &flow->size, &plain) < 3 || flow->size > MOST ||
	    (type == SOCK_DGRAM && flow->size < sizeof(struct head)) || !address(flow, host, port)) {
		fprintf(stderr, "%s is no flow\n", text);
		exit(64);
	}
	snprintf(flow->name, sizeof flow->name, "%s", text);
	if (getrandom(&flow->id, sizeof flow->id, 0) < 0)
		die("getrandom");
	flow->fd = socket(flow->to.ss_family, type, 0);
	setsockopt(flow->fd, SOL_SOCKET, SO_RCVBUFFORCE, &much, sizeof much);
	if (plain == 'n' && setsockopt(flow->fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof on) < 0)
		die("SO_NO_CHECK");
}

static void send_one(struct flow *flow, uint32_t seq)
{
	static unsigned char packet[MOST];

	for (uint32_t i = sizeof(struct head); i < flow->size; i++)
		packet[i] = (unsigned char)(seq * 31 + i * 7);
	seal(packet, (struct head){.flow = flow->id, .seq = seq, .size = flow->size});
	flow->sent_us[seq] = now_us();
	if (send(flow->fd, packet, flow->size, 0) < 0)
		flow->refused++;
}

static void take_echoes(struct flow *flow, uint32_t count)
{
	static unsigned char packet[MOST];
	struct head head;
	ssize_t size;

	while ((size = recv(flow->fd, packet, sizeof packet, MSG_DONTWAIT)) > 0) {
		if (!is_whole(packet, size)) {
			flow->spoilt_here++;
			continue;
		}
		memcpy(&head, packet, sizeof head);
		if (head.flags & SPOILT) {
			flow->spoilt_there++;
			continue;
		}
		if (head.flow != flow->id || head.seq >= count || flow->echoed == flow->room)
			continue;
		flow->echoes[flow->echoed++] =
			(struct echo){head.seq, head.arrival, (uint32_t)(now_us() - flow->sent_us[head.seq])};
	}
}

static void print_flow(const struct flow *flow, uint32_t count, bool last)
{
	printf("{\"flow\": \"%s\", \"sent\": %u, \"refused\": %u, \"spoilt_there\": %u, \"spoilt_here\": %u, \"echoes\": [",
	       flow->name, count, flow->refused, flow->spoilt_there, flow->spoilt_here);
	for (size_t i = 0; i < flow->echoed; i++)
		printf("%s[%u,%u,%u]", i ? "," : "", flow->echoes[i].seq, flow->echoes[i].arrival, flow->echoes[i].us);
	printf("]}%s\n", last ? "" : ",");
}

static int udp(uint64_t gap_us, uint32_t count, uint64_t linger_ms, int flows, char **texts)
{
	static struct flow all[FLOWS];
	struct pollfd fds[FLOWS];
	uint64_t next = now_us(), end = 0;
	uint32_t seq = 0;

	if (flows > FLOWS)
		return 64;
	for (int i = 0; i < flows; i++) {
		open_flow(&all[i], texts[i], SOCK_DGRAM);
		if (connect(all[i].fd, (void *)&all[i].to, all[i].to_size) < 0)
			die(texts[i]);
		all[i].room = (size_t)count * 4;
		all[i].sent_us = calloc(count, sizeof *all[i].sent_us);
		all[i].echoes = calloc(all[i].room, sizeof *all[i].echoes);
		if (!all[i].sent_us || !all[i].echoes)
			die("calloc");
		fds[i] = (struct pollfd){.fd = all[i].fd, .events = POLLIN};
	}
	while (seq < count || now_us() < end) {
		uint64_t now, until;
		struct timespec wait = {0, 0};

		if (interrupted && seq < count) {
			count = seq;
			end = now_us() + linger_ms * 1000;
		}
		now = now_us();
		until = seq < count ? next : end;
		if (seq < count && now >= next) {
			for (int i = 0; i < flows; i++)
				send_one(&all[i], seq);
			seq++;
			next = now - next > 20 * gap_us ? now : next + gap_us; /* no burst after a pause */
			if (seq == count)
				end = now_us() + linger_ms * 1000;
		} else {
			until = until > now ? until : now;
			wait.tv_sec = (time_t)((until - now) / 1000000);
			wait.tv_nsec = (long)((until - now) % 1000000) * 1000;
		}
		if (ppoll(fds, (nfds_t)flows, &wait, NULL) > 0)
			for (int i = 0; i < flows; i++)
				take_echoes(&all[i], count);
	}
	puts("[");
	for (int i = 0; i < flows; i++)
		print_flow(&all[i], count, i == flows - 1);
	puts("]");
	return 0;
}

static bool ready(int fd, short what, uint64_t deadline)
{
	struct pollfd one = {.fd = fd, .events = what};
	uint64_t now = now_us();

	return now < deadline && poll(&one, 1, (int)((deadline - now + 999) / 1000)) > 0;
}

static int tcp(bool put, uint64_t bytes, uint64_t deadline_ms, const char *text)
{
	static char data[CHUNK];
	struct flow flow = {0};
	struct tcp_info info = {0};
	socklen_t info_size = sizeof info;
	uint64_t began = now_us(), deadline = began + deadline_ms * 1000, done = 0, connected = 0, told = 0;
	char order[16] = "";
	int error = 0;
	socklen_t error_size = sizeof error;
	const char *end = "deadline";
	ssize_t n = 1;

	open_flow(&flow, text, SOCK_STREAM | SOCK_NONBLOCK);
	if (connect(flow.fd, (void *)&flow.to, flow.to_size) < 0 && errno != EINPROGRESS)
		die(text);
	if (ready(flow.fd, POLLOUT, deadline)) {
		getsockopt(flow.fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
		connected = now_us();
		snprintf(order, sizeof order, "%c%llu", put ? 'p' : 'g', (unsigned long long)bytes);
		if (!error)
			n = send(flow.fd, order, sizeof order, MSG_NOSIGNAL);
	}
	while (connected && !error && n > 0 && done < bytes && ready(flow.fd, put ? POLLOUT : POLLIN, deadline)) {
		size_t want = bytes - done < CHUNK ? bytes - done : CHUNK;

		n = put ? send(flow.fd, data, want, MSG_NOSIGNAL) : recv(flow.fd, data, want, 0);
		done += n > 0 ? (uint64_t)n : 0;
	}
	if (put && done == bytes && ready(flow.fd, POLLIN, deadline) && recv(flow.fd, &told, sizeof told, 0) == 8)
		done = told; /* what has arrived, not what the socket took */
	else if (put)
		done = 0;
	if (done == bytes)
		end = "done";
	else if (error || n <= 0)
		end = strerror(error ? error : errno);
	getsockopt(flow.fd, IPPROTO_TCP, TCP_INFO, &info, &info_size);
	printf("{\"flow\": \"%s\", \"bytes\": %llu, \"us\": %llu, \"connect_us\": %lld, \"end\": \"%s\", \"mss\": %u, "
	       "\"retransmitted\": %u}\n",
	       text, (unsigned long long)done, (unsigned long long)(now_us() - (connected ? connected : began)),
	       connected ? (long long)(connected - began) : -1LL, end, info.tcpi_snd_mss, info.tcpi_total_retrans);
	return 0;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGINT, interrupt);
	if (argc >= 3 && !strcmp(argv[1], "serve"))
		return serve(argc - 2, argv + 2);
	if (argc >= 6 && !strcmp(argv[1], "udp"))
		return udp(strtoull(argv[2], NULL, 10), (uint32_t)atoi(argv[3]), strtoull(argv[4], NULL, 10), argc - 5,
			   argv + 5);
	if (argc == 6 && !strcmp(argv[1], "tcp"))
		return tcp(!strcmp(argv[2], "put"), strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), argv[5]);
	fputs("usage: net_meter serve PORT... | udp GAP_US COUNT LINGER_MS FLOW... | tcp put|get BYTES DEADLINE_MS FLOW\n",
	      stderr);
	return 64;
}
