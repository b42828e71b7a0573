package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// List prices of Amazon S3 Standard and EC2 on demand in us-east-1, in dollars
// (https://aws.amazon.com/s3/pricing/, https://aws.amazon.com/ec2/pricing/on-demand/).
// Traffic between a bucket and machines of its region is free, and so is deleting.
const (
	pricePerWrite         = 0.005 / 1000  // PUT, COPY, POST or LIST request
	pricePerRead          = 0.0004 / 1000 // GET or HEAD request
	pricePerGBMonth       = 0.023         // bytes kept, first 50 TB
	defaultMachineDollars = 0.0725 * hoursPerMonth
	defaultMachineName    = "c7g.large: 2 cores, 4 GiB"
	hoursPerMonth         = 730 // as AWS counts
)

// listPage is how many objects one LIST request returns at most.
const listPage = 1000

// bucketUse is what a broker's metrics say of its bucket.
type bucketUse struct {
	Puts, Gets, Lists, Deletes float64 // requests, retries included
	BytesIn, BytesOut          float64 // to and from the bucket
}

func (u bucketUse) since(before bucketUse) bucketUse {
	return bucketUse{
		u.Puts - before.Puts, u.Gets - before.Gets, u.Lists - before.Lists, u.Deletes - before.Deletes,
		u.BytesIn - before.BytesIn, u.BytesOut - before.BytesOut,
	}
}

// readBucketUse asks the admin endpoint of a broker.
func readBucketUse(ctx context.Context, admin string, timeout time.Duration) (u bucketUse, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	url := "http://" + admin + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return u, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return u, fmt.Errorf("no broker's metrics at %s (is this, in --admin, the address of its --admin-listen?): %w", admin, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return u, fmt.Errorf("no broker's metrics at %s (is %s, in --admin, the address of its --admin-listen?): %s", url, admin, response.Status)
	}
	if u, err = parseBucketUse(response.Body); err != nil {
		return u, fmt.Errorf("%s, in --admin: %w", admin, err)
	}
	return u, nil
}

func parseBucketUse(r io.Reader) (u bucketUse, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return u, fmt.Errorf("the broker's metrics: %w", err)
	}
	operations, bytes := families["brooklet_objstore_operations_total"], families["brooklet_objstore_transferred_bytes_total"]
	if operations == nil || bytes == nil {
		return u, fmt.Errorf("the broker's metrics have no brooklet_objstore_operations_total and brooklet_objstore_transferred_bytes_total: is it another program?")
	}
	retries := families["brooklet_objstore_retries_total"]
	count := func(op string) float64 { return counterOf(operations, op) + counterOf(retries, op) }
	u.Puts = count("create")
	u.Gets = count("get") + count("get_range")
	if listed := families["brooklet_objstore_listed_objects_total"].GetMetric(); len(listed) == 1 {
		// The first page of each listing, and as many more as its objects filled.
		u.Lists = count("list") + math.Floor(listed[0].GetCounter().GetValue()/listPage)
	}
	u.Deletes = count("delete")
	u.BytesIn = counterOf(bytes, "create")
	u.BytesOut = counterOf(bytes, "get") + counterOf(bytes, "get_range")
	return u, nil
}

// counterOf is the value of a counter with a label "op".
func counterOf(family *dto.MetricFamily, op string) float64 {
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "op" && label.GetValue() == op {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// costItem is a line of the bill.
type costItem struct {
	Item     string  `json:"item"`
	PerMonth float64 `json:"per_month"` // of the unit
	Unit     string  `json:"unit"`
	Price    float64 `json:"price"` // dollars per unit
	Dollars  float64 `json:"dollars_per_month"`
}

// costOf scales what a run of this length used up to a month. Kept is how long records
// are kept, machine the dollars a month for the broker's machine.
func costOf(used bucketUse, run, kept time.Duration, machine float64) []costItem {
	scale := hoursPerMonth * float64(time.Hour) / float64(run)
	item := func(name, unit string, perMonth, price float64) costItem {
		return costItem{name, perMonth, unit, price, perMonth * price}
	}
	storedGB := used.BytesIn / run.Seconds() * kept.Seconds() / 1e9
	return []costItem{
		item("PUT requests", unitRequests, used.Puts*scale, pricePerWrite),
		item("LIST requests", unitRequests, used.Lists*scale, pricePerWrite),
		item("GET requests", unitRequests, used.Gets*scale, pricePerRead),
		item("DELETE requests", unitRequests, used.Deletes*scale, 0),
		item("machine", unitMachines, 1, machine),
		item("bytes kept for "+formatDuration(kept), unitGB, storedGB, pricePerGBMonth),
	}
}

// costTable shows a bill; its total leaves the bytes kept out, because they are the
// same with every program and depend on retention alone.
func costTable(items []costItem) *table {
	t := newTable("ITEM", "A MONTH", "PRICE IN DOLLARS", "DOLLARS A MONTH")
	total := 0.0
	for i, c := range items {
		if i == len(items)-1 {
			t.add("total without bytes kept", "", "", fmt.Sprintf("%.2f", total))
		}
		t.add(c.Item, c.amount(), c.priceText(), fmt.Sprintf("%.2f", c.Dollars))
		total += c.Dollars
	}
	return t
}

// Units of items.
const (
	unitRequests = "requests"
	unitMachines = "machines"
	unitGB       = "GB"
)

func (c *costItem) amount() string {
	if c.Unit == unitMachines && c.PerMonth == 1 {
		return "1 machine"
	}
	return fmt.Sprintf("%.0f %s", c.PerMonth, c.Unit)
}

// priceText is the price of so many units that it is a number to read.
func (c *costItem) priceText() string {
	switch c.Unit {
	case unitRequests:
		return decimals(c.Price*1e6) + " per million"
	case unitMachines:
		return decimals(c.Price) + " per machine"
	}
	return decimals(c.Price) + " per " + c.Unit
}

// decimals writes a number without an exponent, rounded to what prices have.
func decimals(v float64) string {
	text := strings.TrimRight(fmt.Sprintf("%.4f", v), "0")
	return strings.TrimSuffix(text, ".")
}
